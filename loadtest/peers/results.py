"""Medians over rounds, and ratios to nginx in the same run. Pure; knows nothing of how they are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from loadtest.peers.launch import Row
from loadtest.peers.point import Point
from loadtest.peers.visit import WHOLE, Visit

YARDSTICK = "nginx"
# What can be compared with the yardstick's.
COMPARED = (
    "cpu_us_500b",
    "cpu_us_8k",
    "cpu_us_64k",
    "cpu_us_event",
    "cpu_us_event_in_step",
    "rps_500b",
    "ttft_added_us",
    "latency_added_us",
)

Direct = Mapping[str, Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One row. CPU in microseconds a request or event, added times against no router, memory in MB (2**20 bytes).

    None: not measured. `failure` says why a router was not measured, or not in every round; `foreign_cpu` is the
    median of how many cores programs not ours kept busy.
    """

    cpu_us_500b: float | None = None
    cpu_us_8k: float | None = None
    cpu_us_64k: float | None = None
    cpu_us_event: float | None = None
    cpu_us_event_in_step: float | None = None
    rps_500b: float | None = None
    ttft_added_us: float | None = None
    latency_added_us: float | None = None
    event_p50_us: float | None = None
    event_p99_us: float | None = None
    rss_mb: float | None = None
    hit_shares: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    bad_status: int | None = None
    foreign_cpu: float | None = None
    num_rounds: int = 0
    failure: str | None = None

    @property
    def num_errors(self) -> int:
        return sum(self.errors.values())


def figures_of(visits: Sequence[Visit], directs: Sequence[Direct], failure: str | None) -> Figures:
    """The medians of a row's visits; `directs` are the same loads without a router."""
    if not visits:
        return Figures(failure=failure or "not measured")
    points = [point for visit in visits for point in visit.points.values()]
    return Figures(
        cpu_us_500b=_median(visits, lambda visit: visit.points["500b"].cpu_us_per_request),
        cpu_us_8k=_median(visits, lambda visit: visit.points["8k"].cpu_us_per_request),
        cpu_us_64k=_median(visits, lambda visit: visit.points["64k"].cpu_us_per_request),
        cpu_us_event=_median(visits, lambda visit: visit.points["events"].cpu_us_per_event),
        cpu_us_event_in_step=_median(visits, lambda visit: visit.points["in_step"].cpu_us_per_event),
        rps_500b=_median(visits, lambda visit: visit.points["500b"].requests_per_s),
        ttft_added_us=_added(visits, directs, "ttft", lambda point: point.first_event_p50_us),
        latency_added_us=_added(visits, directs, "single", lambda point: point.total_p50_us),
        event_p50_us=_median(visits, lambda visit: visit.points["ttft"].event_p50_us),
        event_p99_us=_median(visits, lambda visit: visit.points["ttft"].event_p99_us),
        rss_mb=_median(visits, lambda visit: visit.rss_mb),
        hit_shares={name: median(shares) for name in WHOLE if (shares := _hit_shares(visits, name))},
        errors=_summed(points),
        bad_status=next((point.first_bad_status for point in points if point.first_bad_status), None),
        foreign_cpu=median(point.foreign_cpu for point in points),
        num_rounds=len(visits),
        failure=failure,
    )


def ratios(figures: Figures, yardstick: Figures | None) -> dict[str, float]:
    """By name, how many times the yardstick's; without those that either lacks."""
    found: dict[str, float] = {}
    for name in COMPARED:
        value, unit = getattr(figures, name), getattr(yardstick, name, None)
        if value is not None and unit:
            found[name] = value / unit
    return found


def as_json(table: Mapping[Row, Figures]) -> dict[str, dict[str, object]]:
    """What `--format json` prints: an object a row, keyed by its name."""
    yardstick = yardstick_of(table)
    return {
        row.name: {
            "cpu_us_500b": _rounded(figures.cpu_us_500b),
            "cpu_us_8k": _rounded(figures.cpu_us_8k),
            "cpu_us_64k": _rounded(figures.cpu_us_64k),
            "cpu_us_event": _rounded(figures.cpu_us_event),
            "cpu_us_event_in_step": _rounded(figures.cpu_us_event_in_step),
            "rps_500b": _rounded(figures.rps_500b),
            "ttft_added_us": _rounded(figures.ttft_added_us),
            "rss_mb": _rounded(figures.rss_mb),
            "latency_added_us": _rounded(figures.latency_added_us),
            "event_p50_us": _rounded(figures.event_p50_us),
            "event_p99_us": _rounded(figures.event_p99_us),
            "times_nginx": {name: round(ratio, 3) for name, ratio in ratios(figures, yardstick).items()},
            "hit_share": {name: round(share, 4) for name, share in figures.hit_shares.items()},
            "num_errors": figures.num_errors,
            "errors": dict(figures.errors),
            "bad_status": figures.bad_status,
            "foreign_cpu": _rounded(figures.foreign_cpu),
            "rounds": figures.num_rounds,
            "about": row.about,
            "failure": figures.failure,
        }
        for row, figures in table.items()
    }


def yardstick_of(table: Mapping[Row, Figures]) -> Figures | None:
    return next((figures for row, figures in table.items() if row.name == YARDSTICK), None)


def _median(visits: Sequence[Visit], value_of: Callable[[Visit], float | None]) -> float | None:
    values = [value for visit in visits if (value := value_of(visit)) is not None]
    return median(values) if values else None


def _added(
    visits: Sequence[Visit], directs: Sequence[Direct], name: str, time_of: Callable[[Point], float | None]
) -> float | None:
    """The median time through the router less that without one."""
    through = _median(visits, lambda visit: time_of(visit.points[name]))
    without = [time for direct in directs if (time := time_of(direct[name])) is not None]
    return through - median(without) if through is not None and without else None


def _hit_shares(visits: Sequence[Visit], name: str) -> list[float]:
    return [visit.hit_shares[name] for visit in visits if name in visit.hit_shares]


def _summed(points: Sequence[Point]) -> dict[str, int]:
    errors: dict[str, int] = {}
    for point in points:
        for name, count in point.errors.items():
            errors[name] = errors.get(name, 0) + count
    return errors


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
