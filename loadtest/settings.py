"""Every setting of the load generator, once: its flag, default, range and line of help are derived from here.

Knows what a valid setting is; knows nothing of argparse or of what the settings cause.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints
from urllib.parse import urlsplit

from loadtest.errors import UsageError


@dataclass(frozen=True, slots=True)
class About:
    """A setting's line of help, and the numbers that it may have. `is_positional`: words without a flag."""

    text: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    metavar: str | None = None
    is_positional: bool = False

    def fault(self, value: float) -> str | None:
        """What is wrong with `value`, if anything."""
        if self.at_least is not None and not value >= self.at_least:
            return f"must be at least {self.at_least:g}"
        if self.above is not None and not value > self.above:
            return f"must be above {self.above:g}"
        if self.at_most is not None and not value <= self.at_most:
            return f"must be at most {self.at_most:g}"
        return None


def _count(text: str) -> About:
    return About(text, at_least=1)


def _positive(text: str) -> About:
    return About(text, above=0)


def _share(text: str) -> About:
    return About(text, at_least=0, at_most=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where to send, and as whom."""

    url: Annotated[str, About("an OpenAI-compatible server, engine or router", metavar="URL")] = (
        "http://127.0.0.1:30000"
    )
    model: Annotated[str | None, About("model id (default: the first that the server lists)")] = None
    api_key: Annotated[str | None, About("sent as a bearer token")] = None
    endpoint: Annotated[Literal["chat", "completions"], About("which inference route")] = "chat"
    timeout_s: Annotated[float, _positive("a request that takes longer counts as failed")] = 300.0
    ignore_eos: Annotated[bool, About("ask for answers of full length (an extension that engines know)")] = False
    seed: Annotated[int, About("drives texts, lengths, arrivals; a new one gives texts that no cache holds")] = 0
    json: Annotated[Path | None, About("write the results and the settings to this file")] = None
    quiet: Annotated[bool, About("no progress and no table")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(Server):
    """`pointsman-load run`."""

    rate: Annotated[float | None, _positive("open loop: requests a second, Poisson arrivals")] = None
    concurrency: Annotated[int | None, _count("closed loop: requests in flight")] = None
    requests: Annotated[int | None, _count("stop after this many (default: 100, or the whole trace)")] = None
    duration_s: Annotated[float | None, _positive("send nothing new after this long")] = None
    input_tokens: Annotated[int, _count("mean prompt length in words; each is within 50 % of it")] = 128
    output_tokens: Annotated[int, _count("mean of max_tokens; each is within 50 % of it")] = 64
    prefix_share: Annotated[float, _share("share of the prompt that all requests begin with, 0 to 1")] = 0.0
    turns: Annotated[int, _count("turns of a conversation; each sends the history and new text")] = 1
    trace: Annotated[str | None, About("replay a shipped trace, or a file", metavar="NAME|PATH")] = None
    speedup: Annotated[float, _positive("divide the trace's times by this")] = 1.0
    shrink: Annotated[float, _positive("divide the trace's lengths by this, for a short context")] = 1.0
    stream: Annotated[bool, About("ask for whole answers; there is no TTFT or ITL then")] = True
    slo_ttft_ms: Annotated[float | None, _positive("goodput counts requests with at most this TTFT")] = None
    slo_itl_ms: Annotated[float | None, _positive("goodput counts requests with at most this mean ITL")] = None
    max_error_share: Annotated[float, _share("exit with 1 if more than this share of requests failed")] = 0.0
    png: Annotated[Path | None, About("draw the latencies and the requests over time to this file")] = None

    def num_planned(self, num_rows: int | None) -> int | None:
        """How many requests to send at most, given the trace's length; None when only time ends the run."""
        if num_rows is not None:
            return min(num_rows, self.requests or num_rows)
        if self.requests is None and self.duration_s is None:
            return 100
        return self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSettings(Server):
    """`pointsman-load cancel`."""

    timeout_s: Annotated[float, _positive("give up if the engines are not idle after this long")] = 30.0
    samples: Annotated[int, _count("cancels to measure in each phase")] = 20
    engine_url: Annotated[tuple[str, ...], About("an engine to watch; repeatable (default: --url)")] = ()
    input_tokens: Annotated[int, _count("prompt length in words; the prefill must last a few looks")] = 1024
    output_tokens: Annotated[int, _count("max_tokens; the answer must outlast the cancel")] = 1024


def about(settings: type[Any]) -> Iterator[tuple[str, Any, Any, About]]:
    """Yield (name, type, default, About) of each setting."""
    hints = get_type_hints(settings, include_extras=True)
    for setting in fields(settings):
        hint, told = get_args(hints[setting.name])
        yield setting.name, hint, setting.default, told


def check_run(settings: RunSettings, given: Set[str]) -> None:
    """Raise UsageError for a value out of range or for flags that contradict each other; `given` are field names."""
    _check_server(settings)
    if settings.rate is not None and settings.concurrency is not None:
        raise UsageError("--rate and --concurrency: give exactly one (open loop or closed loop)")
    if settings.trace is None:
        _check_without_trace(settings, given)
    else:
        _check_with_trace(settings, given)
    if not settings.stream:
        _refuse(given, ("slo_ttft_ms", "slo_itl_ms"), "needs a stream: drop --no-stream")


def check_cancel(settings: CancelSettings) -> None:
    """Raise UsageError for a value out of range."""
    _check_server(settings)
    for url in settings.engine_url:
        check_url("--engine-url", url)


def check_numbers(settings: Any) -> None:
    """Raise UsageError for a number out of its setting's range."""
    for name, _, _, told in about(type(settings)):
        value = getattr(settings, name)
        if isinstance(value, int | float) and (fault := told.fault(value)):
            raise UsageError(f"{flag_name(name)}: {fault}, not {value:g}")


def check_url(flag: str, url: str) -> None:
    """Raise UsageError unless `url` is an http address."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise UsageError(f"{flag}: {url!r} is not an address such as http://127.0.0.1:30000")


def flag_name(name: str) -> str:
    """The flag of a field: `duration_s` -> `--duration-s`."""
    return "--" + name.replace("_", "-")


def _check_server(settings: Server) -> None:
    check_numbers(settings)
    check_url("--url", settings.url)


def _check_without_trace(settings: RunSettings, given: Set[str]) -> None:
    if settings.rate is None and settings.concurrency is None:
        raise UsageError("--rate or --concurrency: give exactly one (open loop or closed loop), or --trace")
    _refuse(given, ("speedup", "shrink"), "needs --trace")


def _check_with_trace(settings: RunSettings, given: Set[str]) -> None:
    names = ("input_tokens", "output_tokens", "prefix_share", "turns")
    _refuse(given, names, "contradicts --trace, which brings its own")
    if settings.rate is not None or settings.concurrency is not None:
        _refuse(given, ("speedup",), "has no effect when --rate or --concurrency sets the pace")


def _refuse(given: Set[str], names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if name in given:
            raise UsageError(f"{flag_name(name)}: {reason}")
