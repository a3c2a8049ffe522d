from router.routing.scorers.wait import Wait
from tests.router.nouns import make_candidate, make_demand


def test_the_wait_is_queued_tokens_over_speed_and_the_drag_of_those_running() -> None:
    candidates = [
        make_candidate("idle"),
        make_candidate("queued", in_flight=1, prefilling=1, prefilling_tokens=1000, prefill_tokens_per_s=500.0),
        make_candidate("running", in_flight=4, decode_drag_s=0.25),
        make_candidate("foreign", foreign_tokens=1000, foreign_requests=2, decode_drag_s=0.5),
    ]
    assert Wait().score(make_demand(), candidates) == [0.0, 2.0, 1.0, 1.5]


def test_without_a_load_report_what_we_sent_is_the_wait() -> None:
    candidate = make_candidate(load=None, in_flight=1, prefilling=1, prefilling_tokens=100, prefill_tokens_per_s=100.0)
    assert Wait().score(make_demand(), [candidate]) == [1.0]
