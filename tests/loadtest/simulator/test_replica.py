"""One simulated replica: stretches give what single steps give, and a step takes what the profile says."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.prefixes import Change, Removed, Stored
from engine.sampling import Sampling
from engine.scheduler import Scheduler
from engine.sequence import Request
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.profile import Overheads, profile
from loadtest.simulator.replica import Listener, SimReplica

PROFILE = profile("llama3-8b-h100-tp1")
OVERHEADS = Overheads(request_s=0.01, token_s=0.001, finish_s=0.002)
BLOCK_SIZE = 8


@dataclass
class Client:
    """Sends requests to a replica and notes what it saw: (id, what, when)."""

    can_stretch: bool
    num_blocks: int = 64
    loop: VirtualLoop = field(default_factory=VirtualLoop)
    seen: list[tuple[str, str, float]] = field(default_factory=list)
    replica: SimReplica = field(init=False)

    def __post_init__(self) -> None:
        scheduler = Scheduler(BlockPool(self.num_blocks, BLOCK_SIZE, records_changes=True), 8, 64)
        core = EngineCore(scheduler)
        self.replica = SimReplica("r", self.loop, core, PROFILE, OVERHEADS, self._changed, can_stretch=self.can_stretch)

    def _changed(self, replica_id: str, changes: list[Change]) -> None:
        for change in changes:
            assert isinstance(change, Stored | Removed)
            blocks = [p.hash for p in change.prefixes] if isinstance(change, Stored) else change.hashes
            self.seen += [(f"{block}", type(change).__name__, self.loop.now) for block in blocks]

    @property
    def told(self) -> list[tuple[str, str, float]]:
        """Without what the cache gained and lost."""
        return [each for each in self.seen if each[1] not in ("Stored", "Removed")]

    def send_at(self, when: float, id: str, prompt: tuple[int, ...], num_output_tokens: int) -> None:
        request = Request(id, prompt, Sampling(max_tokens=num_output_tokens, seed=1000 + len(id)), when)
        self.loop.at(when, lambda: self.replica.submit(request, self._listener(id)))

    def _listener(self, id: str) -> Listener:
        return Listener(
            on_first_token=lambda cached: self.seen.append((id, f"first after {cached}", self.loop.now)),
            on_end=lambda: self.seen.append((id, "end", self.loop.now)),
        )


def load(client: Client, seed: int, num_requests: int) -> None:
    chance = Random(seed)
    at_s = 0.0
    for number in range(num_requests):
        at_s += chance.expovariate(20.0)
        prompt = tuple(
            [chance.randrange(3)] * BLOCK_SIZE * chance.randrange(4) + [number + 10] * chance.randrange(1, 90)
        )
        client.send_at(at_s, f"{number}", prompt, chance.randrange(1, 60))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(24, 64))
def test_stretches_give_what_single_steps_give(seed: int, num_requests: int, num_blocks: int) -> None:
    stretched, stepped = (Client(can_stretch, num_blocks) for can_stretch in (True, False))
    for client in (stretched, stepped):
        load(client, seed, num_requests)
        client.loop.run()
    assert stretched.seen == stepped.seen
    assert len([what for _, what, _ in stretched.seen if what == "end"]) == num_requests
    assert stretched.replica.num_steps == stepped.replica.num_steps
    assert stretched.replica.busy_s == pytest.approx(stepped.replica.busy_s)


def test_times_are_those_of_the_steps_and_overheads() -> None:
    client = Client(can_stretch=True)
    client.send_at(1.0, "a", tuple(range(100)), 3)
    client.loop.run()
    # A budget of 64 tokens a step: the prompt takes two, then two steps decode.
    prefill_s = PROFILE.step_s([(64, 0)], 0, 0) + PROFILE.step_s([(36, 64)], 0, 0)
    decode_s = PROFILE.step_s([], 1, 100) + PROFILE.step_s([], 1, 101)
    first_s = 1.01 + prefill_s
    (_, first, at_s), (_, end, ended_s) = client.told
    assert (first, end) == ("first after 0", "end")
    assert at_s == pytest.approx(first_s + 0.001)
    assert ended_s == pytest.approx(first_s + decode_s + 3 * 0.001 + 0.002)


def test_the_second_of_two_equal_prompts_finds_its_blocks_cached() -> None:
    client = Client(can_stretch=True)
    client.send_at(0.0, "a", tuple(range(40)), 1)
    client.send_at(5.0, "b", tuple(range(40)), 1)
    client.loop.run()
    assert [what for _, what, _ in client.told] == ["first after 0", "end", "first after 32", "end"]


def test_figures_tell_what_runs_and_waits() -> None:
    client = Client(can_stretch=True)
    client.send_at(0.0, "a", tuple(range(40)), 50)
    client.loop.at(0.1, client.loop.stop)
    client.loop.run()
    figures = client.replica.figures()
    assert (figures.running, figures.waiting, figures.queued_tokens) == (1, 0, 0)
    assert 5 / 64 <= figures.kv_used_ratio <= 12 / 64


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_figures_stay_as_they_are_while_the_number_of_turns_does(seed: int) -> None:
    client, known = Client(can_stretch=True), dict[int, object]()
    load(client, seed, 20)

    def look() -> None:
        figures = client.replica.figures()
        assert known.setdefault(client.replica.num_turns, figures) == figures
        if client.loop.now < 3.0:
            client.loop.at(client.loop.now + 0.003, look)

    client.loop.at(0.0, look)
    client.loop.run()
    assert len(set(known.values())) > 1
