"""What the figures say: whose answers are right, and how many times faster ours is.

Pure. Knows figures by contender. Must not know processes or tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.engine.engines import Contender
from loadtest.engine.job import Figures

OURS, REFERENCE = "pointsman", "transformers"


@dataclass(frozen=True, slots=True)
class Row:
    """`num_equal` counts the greedy answers that equal the reference's in float32."""

    contender: Contender
    figures: Figures
    num_equal: int

    @property
    def is_right(self) -> bool:
        return self.num_equal == len(self.figures.answers)

    @property
    def speeds(self) -> dict[str, float]:
        """Tokens a second."""
        decode = {f"batch {batch}": speed for batch, speed in self.figures.decode.items()}
        return decode | {"prefill": self.figures.prefill}


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our speed over a peer's. Each side is in the number format that is its fastest there, among those whose answers
    are all right."""

    what: str
    peer: str
    ratio: float


def rows_of(figures: Mapping[Contender, Figures]) -> list[Row]:
    reference = next(
        measured.answers
        for contender, measured in figures.items()
        if (contender.name, contender.dtype) == (REFERENCE, "float32")
    )
    return [
        Row(contender, measured, sum(a == b for a, b in zip(measured.answers, reference, strict=True)))
        for contender, measured in figures.items()
    ]


def ratios(rows: list[Row]) -> list[Ratio]:
    """Of each peer at each batch size and at prefill; none of a peer whose answers are wrong in every format."""
    peers = list(dict.fromkeys(row.contender.name for row in rows if row.contender.name != OURS))
    found = []
    for what in rows[0].speeds:
        ours = _fastest(rows, OURS, what)
        for peer in peers:
            theirs = _fastest(rows, peer, what)
            if ours is not None and theirs is not None:
                found.append(Ratio(what, peer, ours / theirs))
    return found


def ratios_in(rows: list[Row], dtype: str) -> list[Ratio]:
    """Of dense weights in one format, whatever the answers: to be shown beside."""
    dense = [row for row in rows if row.contender.dtype == dtype and row.contender.quantized == "auto"]
    ours = [row for row in dense if row.contender.name == OURS]
    return [
        Ratio(what, theirs.contender.name, ours[0].speeds[what] / speed)
        for theirs in dense
        if theirs.contender.name != OURS and ours
        for what, speed in theirs.speeds.items()
    ]


def over_our_bfloat16(rows: list[Row]) -> dict[str, float]:
    """At batch 1, by label: our other ways, which may keep the weights' few bits, over our dense bfloat16."""
    ours = {row.contender.label: row.speeds["batch 1"] for row in rows if row.contender.name == OURS}
    dense = ours.pop(f"{OURS} bfloat16", None)
    return {} if dense is None else {label: speed / dense for label, speed in ours.items()}


def _fastest(rows: list[Row], name: str, what: str) -> float | None:
    return max((row.speeds[what] for row in rows if row.contender.name == name and row.is_right), default=None)
