"""A client that reads slowly, or not at all.

The fault: streams that are buffered without bound for a client that does not read. At most 256 KiB of a stream wait in
this process; the replica is paused meanwhile, and is not blamed for its silence.
"""

from router.core import Outcome
from tests.contracts.adapters import HttpClient, every_reply
from tests.contracts.conftest import Rig, Rigs
from tests.contracts.hostile import DONE, Call, event, streams
from tests.fakes import turns, until

MOST_UNSENT_BYTES = 256 * 1024
NUM_EVENTS = 160
BIG = 60_000


async def stalled(rig: Rig) -> tuple[HttpClient, Call]:
    """A client that reads nothing of a long stream, once the replica has been paused for it."""
    client = await rig.ask(stream=True)
    call = await rig.call()
    client.stop_reading()
    call.stream()
    for number in range(NUM_EVENTS):
        call.send(event(f"{number} " + "x" * BIG))
    await until(lambda: any(relay._paused_at is not None for relay in rig.station.relays))
    await turns(200)
    return client, call


@every_reply
async def test_what_waits_for_a_slow_reader_is_bounded_and_the_replica_is_paused(rigs: Rigs) -> None:
    rig = await rigs.open()
    client, call = await stalled(rig)
    # Once all buffers on the way are full the replica itself is held up.
    await until(lambda: rig.replies.num_unsent and call.num_unsent)
    assert rig.replies.num_unsent <= MOST_UNSENT_BYTES
    client.leave()


@every_reply
async def test_what_waits_is_bounded_even_where_the_stream_was_fast_before(rigs: Rigs) -> None:
    """A fast stream grows the kernel's windows, and with them what a single read brings."""
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    for number in range(NUM_EVENTS):
        call.send(event(f"{number} " + "x" * BIG))
    await client.read_until(event(f"{NUM_EVENTS - 1} " + "x" * BIG))
    client.stop_reading()
    while rig.replies.num_unsent < 60_000:
        call.send(event("x" * 1000))
        await turns(5)
    for _ in range(NUM_EVENTS):
        call.send(event("x" * BIG))
    await until(lambda: any(relay._paused_at is not None for relay in rig.station.relays))
    await turns(200)
    assert rig.replies.num_unsent <= MOST_UNSENT_BYTES
    client.leave()


@every_reply
async def test_a_slow_reader_that_reads_on_gets_every_byte(rigs: Rigs) -> None:
    rig = await rigs.open()
    client, call = await stalled(rig)
    call.send(DONE)
    call.end()
    client.read_on()
    answer = await client.answer()
    assert answer.payload == b"".join(event(f"{n} " + "x" * BIG) for n in range(NUM_EVENTS)) + DONE
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.OK]


async def test_a_reader_that_stalls_past_the_idle_timeout_is_dropped(rigs: Rigs) -> None:
    rig = await rigs.open(idle_timeout_s=60.0)
    client, call = await stalled(rig)
    rig.tick(59.0)
    await turns()
    assert not call.is_dropped
    rig.tick(2.0)
    await until(lambda: call.is_dropped)
    client.read_on()
    answer = await client.answer()
    assert answer.is_cut, "no proper end: the client can tell that the rest is missing"
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.CLIENT_GONE]
    assert rig.station.faults == {}


@every_reply
async def test_the_time_that_a_client_did_not_read_is_not_the_replicas_silence(rigs: Rigs) -> None:
    rig = await rigs.open(idle_timeout_s=60.0)
    client, call = await stalled(rig)
    rig.tick(59.0)
    client.read_on()
    await client.read_until(event(f"{NUM_EVENTS - 1} " + "x" * BIG))
    rig.tick(59.0)
    call.send(DONE)
    call.end()
    assert (await client.answer()).payload.endswith(DONE)
    assert rig.station.faults == {}


@every_reply
async def test_a_slow_reader_holds_up_nobody_else(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1)
    slow, _ = await stalled(rig)
    rig.script.otherwise = streams(event("a"), DONE)
    for _ in range(3):
        quick = await rig.ask(stream=True)
        assert (await quick.answer()).payload == event("a") + DONE
    slow.leave()
