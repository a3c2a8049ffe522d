"""How much a pool takes: each for itself, by what its replicas have shown."""

from router.admission.capacity import Capacity, Room
from router.core import Load, Pool, Replica, ReplicaState
from tests.router.nouns import make_replica


def replica(name: str, model: str = "m", **fields: object) -> Replica:
    return make_replica(name, pool=Pool(model), **fields)


def report(at: float, running: int, waiting: int) -> Load:
    return Load(at, running, waiting, 0.5)


def test_an_idle_model_does_not_hide_a_saturated_one() -> None:
    capacity = Capacity(10)
    replicas = [replica("a"), replica("b"), replica("c", "other"), replica("d", state=ReplicaState.FAILED)]
    assert capacity.of("m", replicas) == Room(20)
    assert capacity.of("other", replicas) == Room(10)
    assert capacity.of("unknown", replicas) == Room(0)


def test_tokens_are_those_of_all_caches_and_a_little_more_and_unknown_where_one_has_not_said() -> None:
    known, other = replica("a", kv_capacity_tokens=8000), replica("b", kv_capacity_tokens=4000)
    assert Capacity(10).of("m", [known, other]) == Room(20, 15_000)
    assert Capacity(10).of("m", [known, other, replica("c")]) == Room(30, None)


def test_a_replica_that_keeps_requests_waiting_is_full_at_what_it_runs_and_a_little_more() -> None:
    capacity, full = Capacity(256), replica("a")
    for at in (1.0, 2.0):
        full.load = report(at, running=16, waiting=9)
        capacity.of("m", [full])
    assert capacity.of("m", [full]).requests == 20
    assert repr(capacity) == "<Capacity 256 a replica, but {'a': 20}>"


def test_one_report_alone_and_a_short_engine_queue_say_nothing() -> None:
    capacity, busy = Capacity(256), replica("a")
    for at, waiting in ((1.0, 9), (2.0, 1), (3.0, 9), (3.0, 9)):
        busy.load = report(at, running=16, waiting=waiting)
        assert capacity.of("m", [busy]).requests == 256


def test_a_learned_limit_rises_while_the_replica_keeps_nobody_waiting() -> None:
    capacity, once_full = Capacity(64), replica("a")
    for at in (1.0, 2.0):
        once_full.load = report(at, running=16, waiting=9)
        capacity.of("m", [once_full])
    once_full.in_flight = 20
    found = []
    for at in range(3, 30):
        once_full.load = report(float(at), running=20, waiting=0)
        found.append(capacity.of("m", [once_full]).requests)
        once_full.in_flight = found[-1]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (22, 64)
    capacity.forget("a")
    assert capacity.of("m", [once_full]).requests == 64
