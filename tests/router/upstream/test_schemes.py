"""Which pool an attempt goes by."""

from typing import Any, cast

from router.spec import ReplicaSpec
from router.upstream.schemes import SchemeUpstream
from tests.fakes import FakeUpstream
from tests.router.upstream.fakes import FakeSink, make_attempt


class SweptUpstream(FakeUpstream):
    num_sweeps = 0

    def sweep(self) -> None:
        self.num_sweeps += 1


async def test_the_scheme_says_which_pool_is_asked() -> None:
    http, grpc = SweptUpstream(has_idle=True), SweptUpstream(has_idle=True)
    upstream = SchemeUpstream(cast(Any, http), cast(Any, grpc))
    for url in ("http://a:1", "https://b:1", "grpc://c:1", "grpcs://d:1"):
        upstream.open_now(make_attempt(ReplicaSpec(url)), FakeSink())
        await upstream.open(make_attempt(ReplicaSpec(url)), FakeSink())
    assert [each.attempt.replica.id for each in http.exchanges] == ["a:1", "a:1", "b:1", "b:1"]
    assert [each.attempt.replica.id for each in grpc.exchanges] == ["c:1", "c:1", "d:1", "d:1"]
    upstream.sweep()
    assert (http.num_sweeps, grpc.num_sweeps) == (1, 1)
    await upstream.close()
