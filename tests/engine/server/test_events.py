"""A reader as routers have them, on real ZMQ sockets within the process's machine."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from engine.blocks import BlockPool
from engine.prefixes import NO_SCOPE, Change, Cleared, Medium, Removed, Scope
from engine.server.events import EventsError, KvEventPublisher, KvEventsConfig, encode
from pointsman.blockhash import block_hashes

SIZE = 4
Socket = zmq.Socket[bytes]


def stored(tokens: range, scope: Scope = NO_SCOPE) -> list[Change]:
    """What a pool says when these tokens' blocks are shared."""
    pool = BlockPool(16, SIZE, records_changes=True)
    table = pool.allocate(len(tokens) // SIZE)
    for index, block_hash in enumerate(block_hashes(tokens, SIZE, adapter=scope.adapter, salt=scope.salt)):
        pool.publish(table, index, block_hash, tokens, scope)
    return pool.take_changes()


def config(folder: Path, **settings: Any) -> KvEventsConfig:
    addresses = {"endpoint": f"ipc://{folder}/events", "replay_endpoint": f"ipc://{folder}/replay"}
    return KvEventsConfig(enable_kv_cache_events=True, **addresses | settings)


@contextmanager
def reading(kind: int, address: str | None) -> Iterator[Socket]:
    assert address is not None
    context = zmq.Context()
    try:
        socket = context.socket(kind)
        socket.rcvtimeo = 10_000
        if kind == zmq.SUB:
            socket.subscribe("")
        socket.connect(address)
        yield socket
    finally:
        context.destroy(linger=0)


@contextmanager
def publishing(settings: KvEventsConfig) -> Iterator[KvEventPublisher]:
    publisher = KvEventPublisher(settings, SIZE)
    publisher.open()
    with closing(publisher):
        yield publisher


def ask_again(socket: Socket, first: int) -> list[tuple[int, Any]]:
    socket.send_multipart((b"", first.to_bytes(8, "big")))
    found = []
    while (frames := socket.recv_multipart())[2]:
        assert frames[0] == b""
        found.append((int.from_bytes(frames[1], "big"), msgspec.msgpack.decode(frames[2])))
    assert frames == [b"", b"\xff" * 8, b""]
    return found


def test_a_subscriber_gets_topic_sequence_and_payload(tmp_path: Path) -> None:
    settings = config(tmp_path, topic="kv@one")
    with reading(zmq.SUB, settings.endpoint) as reader, publishing(settings) as publisher:
        # A subscription takes a while to arrive: say it until it is heard.
        reader.rcvtimeo = 20
        frames: list[bytes] | None = None
        while frames is None:
            publisher.publish([Cleared()])
            try:
                frames = reader.recv_multipart()
            except zmq.Again:
                continue
        topic, sequence, payload = frames
        assert topic == b"kv@one"
        assert len(sequence) == 8
        batch = msgspec.msgpack.decode(payload)
        assert batch.pop("ts") > 0
        assert batch == {"events": [{"type": "AllBlocksCleared"}], "data_parallel_rank": 0}


def test_what_was_sent_can_be_asked_for_again_from_any_sequence_on(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with publishing(settings) as publisher, reading(zmq.DEALER, settings.replay_endpoint) as asker:
        for number in range(5):
            publisher.publish([Removed([number], Medium.GPU)])
        found = ask_again(asker, 3)
        assert [number for number, _ in found] == [3, 4]
        assert found[0][1]["events"] == [{"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"}]
        assert [number for number, _ in ask_again(asker, 0)] == [0, 1, 2, 3, 4]
        assert ask_again(asker, 5) == []


def test_the_buffer_keeps_the_newest_batches(tmp_path: Path) -> None:
    settings = config(tmp_path, buffer_steps=2)
    with publishing(settings) as publisher, reading(zmq.DEALER, settings.replay_endpoint) as asker:
        for _ in range(5):
            publisher.publish([Cleared()])
        assert [number for number, _ in ask_again(asker, 0)] == [3, 4]


def test_a_malformed_question_is_passed_over(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with publishing(settings) as publisher, reading(zmq.DEALER, settings.replay_endpoint) as asker:
        asker.send_multipart((b"", b"short"))
        asker.send(b"what?")
        publisher.publish([Cleared()])
        assert [number for number, _ in ask_again(asker, 0)] == [0]


def test_a_full_queue_leaves_a_gap_in_the_sequence(tmp_path: Path) -> None:
    settings = config(tmp_path, max_queue_size=1)
    publisher = KvEventPublisher(settings, SIZE)
    with pytest.MonkeyPatch.context() as patch:
        # The thread starts only after the queue has overflown.
        patch.setattr("engine.server.events.Thread.start", lambda thread: None)
        publisher.open()
        for _ in range(3):
            publisher.publish([Cleared()])
    publisher._thread.start()
    with closing(publisher), reading(zmq.DEALER, settings.replay_endpoint) as asker:
        assert [number for number, _ in ask_again(asker, 0)] == [0]
        publisher.publish([Cleared()])
        assert [number for number, _ in ask_again(asker, 0)] == [0, 3]


@pytest.mark.parametrize(
    ("scope", "extra_keys"),
    [
        (NO_SCOPE, None),
        (Scope(salt="s"), [["s"], None]),
        (Scope(adapter="a", adapter_load=1), [["a"], ["a"]]),
        (Scope("a", "s", 1), [["a", "s"], ["a"]]),
    ],
)
def test_stored_blocks_say_all_that_their_hash_is_made_of(scope: Scope, extra_keys: Any) -> None:
    batch = msgspec.msgpack.decode(encode(stored(range(10), scope), 1.5, 3, SIZE))
    assert (batch["ts"], batch["data_parallel_rank"]) == (1.5, 3)
    assert batch["events"] == [
        {
            "type": "BlockStored",
            "block_hashes": block_hashes(range(8), SIZE, adapter=scope.adapter, salt=scope.salt),
            "parent_block_hash": None,
            "token_ids": list(range(8)),
            "block_size": SIZE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": scope.adapter,
            "extra_keys": extra_keys,
        }
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "--kv-events-config: Input data was truncated"),
        ('{"enable": true}', "unknown field `enable`"),
        ('{"publisher": "kafka"}', r"Invalid enum value 'kafka' - at `\$.publisher`"),
        ('{"buffer_steps": 0}', r"`\$.buffer_steps`"),
    ],
)
def test_a_wrong_configuration_names_the_field(text: str, complaint: str) -> None:
    with pytest.raises(EventsError, match=complaint):
        KvEventsConfig.parse(text)


def test_events_are_off_unless_enabled() -> None:
    assert not KvEventsConfig.parse("{}").is_on
    assert not KvEventsConfig.parse('{"enable_kv_cache_events": true, "publisher": "null"}').is_on
    assert KvEventsConfig.parse('{"enable_kv_cache_events": true}').is_on


def test_an_address_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    settings = config(tmp_path, replay_endpoint=f"ipc://{tmp_path}/no/such/folder")
    with pytest.raises(EventsError, match=r"replay_endpoint ipc://.*no/such/folder cannot be used"):
        KvEventPublisher(settings, SIZE).open()


def test_each_rank_has_the_next_port() -> None:
    settings = KvEventsConfig(endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://192.0.2.1:5")
    publisher = KvEventPublisher(settings, SIZE, rank=1)
    with pytest.raises(EventsError, match=r"replay_endpoint tcp://192\.0\.2\.1:6 cannot be used"):
        publisher.open()
