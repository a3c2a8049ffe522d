"""Settings of `pointsman-load peers`. Knows what a valid setting is; knows no peer by name and measures nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from loadtest.errors import UsageError
from loadtest.settings import About, check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersSettings:
    """`pointsman-load peers`."""

    only: Annotated[str | None, About("measure these alone", metavar="A,B")] = None
    features: Annotated[bool, About("measure our own router with each feature switched off, one by one")] = False
    rounds: Annotated[int, About("each router is started and measured so often, in turn", at_least=1)] = 3
    seconds: Annotated[float, About("length of each of a round's measurements", at_least=0.1, at_most=600)] = 1.0
    format: Annotated[Literal["table", "json"], About("what is printed")] = "table"
    png: Annotated[Path | None, About("draw the CPU times to this file")] = None
    scratch: Annotated[Path | None, About("keeps what is installed and built", metavar="DIR")] = None

    def names(self) -> tuple[str, ...] | None:
        """Those that `only` names, in its order; None where it was not given."""
        if self.only is None:
            return None
        return tuple(dict.fromkeys(name.strip() for name in self.only.split(",") if name.strip()))


def check_peers(settings: PeersSettings) -> None:
    """Raise UsageError for a value out of range or for flags that contradict each other."""
    check_numbers(settings)
    if settings.only is not None and settings.features:
        raise UsageError("--only: contradicts --features, which brings its own rows")
    if settings.names() == ():
        raise UsageError("--only: names no router")
