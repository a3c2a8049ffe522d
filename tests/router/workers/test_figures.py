import random

from router.workers.figures import Totals, merge_replicas, render
from router.workers.frames import Family, Report


def family(name: str, value: float, kind: str = "counter", **labels: str) -> Family:
    return Family(name, kind, "Help.", [(f"{name}_total" if kind == "counter" else name, labels, value)])


def report(*families: Family, replicas: tuple[dict[str, object], ...] = ()) -> Report:
    return Report(True, {}, replicas, [], families)


def row(**fields: object) -> dict[str, object]:
    return {
        "id": "a",
        "state": "ready",
        "breaker": "closed",
        "in_flight": 0,
        "cached_blocks": 0,
        "expected_wait_s": 0.0,
        "prefill_tokens_per_s": 2000.0,
        "speed_source": "prior",
        "speed_samples": 0,
        "knowledge": "EXACT",
        "adapters": {},
        **fields,
    }


def test_counters_and_histograms_are_added_up() -> None:
    totals = Totals()
    buckets = [("h_bucket", {"le": "1.0"}, 2.0), ("h_bucket", {"le": "+Inf"}, 3.0), ("h_count", {}, 3.0)]
    totals.add([family("c", 2, model="m"), Family("h", "histogram", "Help.", buckets)])
    totals.add([family("c", 3, model="m"), family("c", 4, model="n"), Family("h", "histogram", "Help.", buckets)])
    page = render(totals).decode()
    assert 'c_total{model="m"} 5.0' in page
    assert 'c_total{model="n"} 4.0' in page
    assert 'h_bucket{le="+Inf"} 6.0' in page
    assert "# TYPE h histogram" in page


def test_a_gauge_of_what_each_holds_is_added_up_and_of_what_all_see_the_largest_stands() -> None:
    totals = Totals()
    for value in (2, 3):
        names = ("pointsman_open_requests", "pointsman_index_blocks")
        totals.add([family(name, value, "gauge") for name in names])
    page = render(totals).decode().splitlines()
    assert "pointsman_open_requests 5.0" in page
    assert "pointsman_index_blocks 3.0" in page


def test_no_counter_goes_back_when_processes_come_and_go() -> None:
    """The rule of the supervisor: the last report of the dead is added to those of the living, its gauges are not."""
    dice, departed, shown = random.Random(2), Totals(), 0.0
    living = [0, 0, 0]
    for _ in range(500):
        who = dice.randrange(3)
        living[who] += dice.randrange(5)
        if dice.random() < 0.1:
            departed.add([family("c", living[who]), family("g", 1, "gauge")], only_counted=True)
            living[who] = 0
        totals = Totals()
        totals.add(departed.families())
        for count in living:
            totals.add([family("c", count)])
        (value,) = totals.samples["c"].values()
        assert value >= shown
        shown = value
    assert "g" not in departed.samples


def test_a_replicas_row_is_the_sum_of_what_workers_have_and_the_worst_of_what_they_found() -> None:
    one = row(in_flight=2, breaker="open", cached_blocks=5, expected_wait_s=0.5)
    doubt = "APPROXIMATE: it lies"
    other = row(in_flight=3, breaker="half_open", cached_blocks=7, expected_wait_s=0.25, knowledge=doubt)
    (merged,) = merge_replicas([report(replicas=(one,)), report(replicas=(other,))])
    assert merged == row(in_flight=5, breaker="open", cached_blocks=7, expected_wait_s=0.5, knowledge=doubt)


def test_of_a_speed_whose_samples_say_most_of_it_is_shown() -> None:
    rows = [row(speed_source=source, speed_samples=count) for source, count in (("sibling", 3), ("own", 40))]
    (merged,) = merge_replicas([report(replicas=(each,)) for each in rows])
    assert merged == row(speed_source="own", speed_samples=43)


def test_of_an_adapter_what_the_worker_that_looks_after_it_knows_is_shown() -> None:
    waiting, failed = {"state": "waiting", "reason": ""}, {"state": "failed", "reason": "no such path"}
    rows = [row(adapters={"red": waiting}), row(adapters={"red": failed, "blue": waiting}), row(adapters={})]
    (merged,) = merge_replicas([report(replicas=(each,)) for each in rows])
    assert merged["adapters"] == {"red": failed, "blue": waiting}


def test_a_replica_that_one_worker_knows_is_shown() -> None:
    merged = merge_replicas([report(), report(replicas=(row(id="b"),))])
    assert [each["id"] for each in merged] == ["b"]
