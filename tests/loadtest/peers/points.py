"""Points and visits for tests of what is made of them."""

from collections.abc import Mapping

from loadtest.peers.point import Point
from loadtest.peers.visit import POINTS, Visit


def point(
    *,
    cpu_us: float = 1000.0,
    num_answers: int = 100,
    num_events: int = 0,
    total_us: float | None = 50.0,
    first_us: float | None = None,
    errors: Mapping[str, int] | None = None,
    status: int | None = None,
    foreign_cpu: float = 0.0,
) -> Point:
    return Point(
        num_answers=num_answers,
        num_events=num_events,
        requests_per_s=float(num_answers),
        events_per_s=float(num_events),
        total_p50_us=total_us,
        first_event_p50_us=first_us,
        event_p50_us=None,
        event_p99_us=None,
        errors=errors or {},
        first_bad_status=status,
        cpu_us=cpu_us,
        foreign_cpu=foreign_cpu,
    )


def visit(hit_shares: Mapping[str, float] | None = None, rss_mb: float = 10.0, **points: Point) -> Visit:
    """A visit with these points, the others plain."""
    named = {"p500b": "500b", "p8k": "8k", "p64k": "64k"}
    given = {named.get(name, name): found for name, found in points.items()}
    return Visit({name: given.get(name, point()) for name in POINTS}, rss_mb, hit_shares or {})
