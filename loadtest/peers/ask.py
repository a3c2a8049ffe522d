"""One request to a port of this machine, by no proxy. Knows HTTP; knows nothing of who answers."""

import http.client
from collections.abc import Mapping

_NO_HEADERS: Mapping[str, str] = {}


def ask(
    port: int, path: str, body: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS, timeout_s: float = 10.0
) -> tuple[int, bytes]:
    """Status and body. POST where there is a body to send. Raises OSError, also for what is no HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error!r}") from None
    finally:
        connection.close()
