"""Log lines as JSON, one a request. Knows field names and levels; never logs prompts, answers or secrets."""

import json
import logging
import sys
import time

LOGGER = "router"  # the package: every module below it logs here


class JsonLines(logging.Formatter):
    """`{"time": ..., "level": ..., "message": ..., **fields}`; fields come as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def open_log(level: str) -> logging.Logger:
    """The router's logger, writing to standard error. `level` as in the settings."""
    logger = logging.getLogger(LOGGER)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    return logger
