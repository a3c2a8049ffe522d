"""What replicas tell of their caches, through the feed to all workers of a host, and to others who ask."""

from array import array
from typing import Any

import msgspec
from aiohttp import web

from pointsman.blockhash import block_hashes
from router.prefix.knowledge import Knowing
from router.workers import frames, warming
from router.workers.frames import Export, Find, Found
from router.workers.line import Line
from tests.router.prefix.publisher import publishing, removed, stored
from tests.router.replicas.fakes import FakeReplica
from tests.router.served import served
from tests.router.workers.test_feed import host, until


class Written(Line):
    """One end of a line that goes nowhere."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None, lambda _: None)
        self.messages: list[Any] = []

    def send(self, message: frames.Message) -> None:
        self.messages.append(message)


def sibling(packed: bytes) -> web.Application:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=packed)

    app = web.Application()
    app.router.add_get("/admin/prefix", answer)
    return app


async def test_what_a_replica_tells_of_its_cache_is_known_to_all_and_to_who_comes_later() -> None:
    ids = list(range(64))
    whole = block_hashes(ids, 16)
    async with publishing() as publisher, FakeReplica("m") as replica:
        options = f",kv={publisher.address},replay={publisher.replay_address}"
        async with host(replica, options=options) as rig:
            await rig.until_ready()
            await publisher.publish(stored([1, 2, 3, 4], ids))
            known = {replica.id: 4}
            await until(lambda: all(crew.index.match(whole) == known for crew in rig.crews))
            await until(lambda: {crew.knowing() for crew in rig.crews} == {Knowing.EXACT})
            late = rig.join()
            await until(lambda: late.index.match(whole) == known and late.knowing() is Knowing.EXACT)
            await publisher.publish(removed(4))
            await until(lambda: all(crew.index.match(whole) == {replica.id: 3} for crew in rig.crews))
            await rig.stop_feed()
            rig.start_feed()
            later = rig.join()
            await until(lambda: all(crew.index.match(whole) == {replica.id: 3} for crew in rig.crews))
            assert later.index.is_told(replica.id, whole[2])


async def test_a_replica_that_is_lost_tells_anew_when_it_is_back() -> None:
    ids = list(range(32))
    whole = block_hashes(ids, 16)
    async with publishing() as publisher, FakeReplica("m") as replica:
        options = f",kv={publisher.address},replay={publisher.replay_address}"
        async with host(replica, options=options) as rig:
            await rig.until_ready()
            await publisher.publish(stored([1, 2], ids))
            await until(lambda: all(crew.index.match(whole) for crew in rig.crews))
            publisher.is_deaf = True
            await replica.die()
            await until(lambda: not any(crew.index.match(whole) for crew in rig.crews))
            publisher.is_deaf = False
            await replica.return_()
            await until(lambda: all(crew.index.match(whole) == {replica.id: 2} for crew in rig.crews))


async def test_others_may_ask_the_feed_who_holds_what() -> None:
    ids = list(range(32))
    whole = block_hashes(ids, 16)
    async with publishing() as publisher, FakeReplica("m") as replica:
        options = f",kv={publisher.address},replay={publisher.replay_address}"
        async with host(replica, options=options) as rig:
            await rig.until_ready()
            await publisher.publish(stored([1, 2], ids))
            await until(lambda: all(crew.index.match(whole) for crew in rig.crews))
            rig.crews[0].send(replica.id, 1000)
            await until(lambda: rig.crews[1].holds(replica.id, 1000))
            assert rig.feed is not None
            line = Written()
            rig.feed.find(Find(7, array("Q", whole).tobytes()), line)
            rig.feed.export(Export(8), line)
            found, exported = line.messages
            assert found == Found(7, {replica.id: 2}, {replica.id: 2})
            chains = msgspec.msgpack.decode(exported.packed)
            assert [(id, list(array("Q", packed))) for id, packed in chains] == [
                (replica.id, whole),
                (replica.id, [1000, 1001, 1002, 1003]),
            ]


async def test_a_feed_that_begins_passes_on_what_a_sibling_knows() -> None:
    async with FakeReplica("m") as replica:
        packed = warming.pack([(replica.id, array("Q", [5, 6]).tobytes())])
        async with served(sibling(packed)) as url, host(replica, warm_from=(url,)) as rig:
            await until(lambda: all(crew.holds(replica.id, 5) for crew in rig.crews))
