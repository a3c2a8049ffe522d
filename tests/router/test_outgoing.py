"""The way to replicas as the composition root opens it: merged requests through the whole data path."""

import json

from router.core import Surface
from router.outgoing import with_merging
from router.spec import Merge, ReplicaSpec
from router.telemetry.metrics import Metrics
from router.upstream.merging import MergingUpstream
from tests.fakes import FakeReply, FakeUpstream, Station, until
from tests.router.nouns import make_request

LONG_S = 3600.0


def test_where_no_replica_merges_there_is_nothing_around_the_pool() -> None:
    pool = FakeUpstream()
    assert with_merging(pool, [ReplicaSpec("http://a")], Metrics()) is pool
    merging = with_merging(pool, [ReplicaSpec("http://a", merge=Merge(0.01))], Metrics())
    assert isinstance(merging, MergingUpstream)


async def test_merged_requests_have_a_lease_each_and_are_told_their_own_tokens() -> None:
    pool, specs = FakeUpstream(has_idle=True), [ReplicaSpec("http://a", merge=Merge(LONG_S, 8))]
    metrics = Metrics()
    station = Station(with_merging(pool, specs, metrics), specs)
    replies = [FakeReply() for _ in range(8)]
    for number, reply in enumerate(replies):
        body = json.dumps({"model": "m", "input": "x" * (number + 1)}).encode()
        station.proxy.begin(make_request(f"r{number}", surface=Surface.EMBEDDINGS, body=body), reply)
    [exchange] = pool.exchanges
    assert station.registry.replicas()[0].in_flight == 8
    rows = [{"index": index, "embedding": [index]} for index in range(8)]
    # Each prompt has 64 tokens as the station reads it; the replica adds one to each.
    answer = {"data": rows, "usage": {"prompt_tokens": 8 * 65, "total_tokens": 8 * 65}}
    exchange.answer(200, json.dumps(answer).encode())
    await until(lambda: all(reply.is_complete for reply in replies))
    told = [json.loads(reply.answer) for reply in replies]
    assert [each["data"] for each in told] == [[{"index": 0, "embedding": [number]}] for number in range(8)]
    assert [each["usage"]["prompt_tokens"] for each in told] == [65] * 8
    replica = (station.registry.replicas()[0].id,)
    assert (metrics.merged_calls.counts, metrics.merged_requests.counts) == ({replica: 1}, {replica: 8})
    assert not station.left_over


async def test_a_client_that_leaves_a_merged_call_frees_its_place_and_the_others_are_served() -> None:
    pool, specs = FakeUpstream(has_idle=True), [ReplicaSpec("http://a", merge=Merge(LONG_S, 2))]
    station = Station(with_merging(pool, specs, Metrics()), specs)
    replies = [FakeReply(), FakeReply()]
    for number, reply in enumerate(replies):
        body = json.dumps({"model": "m", "input": "x" * (number + 1)}).encode()
        station.proxy.begin(make_request(f"r{number}", surface=Surface.EMBEDDINGS, body=body), reply)
    replies[0].leave()
    assert station.registry.replicas()[0].in_flight == 1
    pool.exchanges[0].answer(200, b'{"data":[{"index":0,"embedding":[0]},{"index":1,"embedding":[1]}]}')
    await until(lambda: replies[1].is_complete)
    assert json.loads(replies[1].answer)["data"][0]["embedding"] == [1]
    assert not station.left_over
