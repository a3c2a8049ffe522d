"""The engine as a synchronous machine: requests in, a batch to compute, tokens in, outputs out.

Knows the scheduler and when a sequence has come to its end. Must not know asyncio, threads, tensors or the wall
clock: whoever steps it passes the time, so a simulator can step it as fast as it likes.

One step is `plan`, then computing the batch by whatever means, then `commit` with the tokens (or `fail`). Decode steps
that are all alike can be taken at once: `num_steady_steps`, then `advance`.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec.structs import replace

from engine.adapters import Adapter
from engine.batch import Batch, Chunk
from engine.prefixes import Change
from engine.sampling import Pooled, Pooling, Result, Sampled, TokenLogprobs
from engine.scheduler import Scheduler
from engine.sequence import FinishReason, Output, Request, Sequence
from engine.stats import Stats
from engine.structure import Structure
from engine.text import TextStream


@dataclass(eq=False, slots=True)
class EngineCore:
    """Not thread-safe: one thread adds, aborts and steps."""

    scheduler: Scheduler
    stats: Stats = field(default_factory=Stats)
    sleep_level: int | None = None
    _texts: dict[str, TextStream] = field(default_factory=dict)
    # When the last step ended, and so the next one began, unless there was nothing to do.
    _stepped_s: float = 0.0

    @property
    def is_asleep(self) -> bool:
        return self.sleep_level is not None

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute now."""
        return not self.is_asleep and self.scheduler.num_waiting + self.scheduler.num_running > 0

    def add(
        self,
        request: Request,
        text: TextStream | None = None,
        structure: Structure | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        """Queues a request; without `text`, its outputs carry token ids only. `adapter` is what the scheduler's `check`
        gave, if it was asked. Raises ValueError if it can never fit the KV cache, its adapter is not loaded, or its id
        is in use."""
        self.scheduler.add(request, adapter).structure = structure
        if text is not None:
            self._texts[request.id] = text

    def abort(self, request_id: str) -> None:
        """Frees the request's blocks now. Nothing happens if it is finished or unknown."""
        sequence = self.scheduler.find(request_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.ABORT)

    def plan(self) -> Batch:
        return self.scheduler.schedule()

    def commit(self, batch: Batch, results: List[Result], now_s: float) -> list[Output]:
        """`results` has one entry for each chunk."""
        outputs: list[Output] = []
        computed, began_s, self._stepped_s = self.scheduler.computed, self._stepped_s, now_s
        self.stats.step_tokens.observe(batch.num_tokens)
        for chunk, result in zip(batch.chunks, results, strict=True):
            if chunk.sequence.scheduled_s is None:
                chunk.sequence.scheduled_s = max(began_s, chunk.sequence.request.arrived_s)
            computed(chunk)
            if isinstance(result, int):
                outputs.append(self._append(chunk.sequence, result, now_s))
            elif isinstance(result, Pooled):
                outputs += self._pool(chunk, result)
            elif result is not None:
                outputs += self._take(chunk, result, now_s)
        return outputs

    def fail(self, batch: Batch, error: str) -> list[Output]:
        """Ends what is left of the batch's requests; all others go on."""
        if batch.copies:
            # Nobody knows which of them were made: what other sequences were to find in their blocks may be missing.
            self.scheduler.forget_kv()
        outputs = []
        for chunk in batch.chunks:
            sequence = chunk.sequence
            if self.scheduler.find(sequence.request.id) is sequence:
                self._finish(sequence, FinishReason.ERROR)
                outputs.append(_output(sequence, (), "", error=error))
        return outputs

    def take_changes(self) -> list[Change]:
        """What came into the KV cache and went, for whoever set the pool's `records_changes`."""
        return self.scheduler.pool.take_changes()

    def sleep(self, level: int) -> None:
        """Nothing is computed until `wake`; all KV is lost. What is open is kept, and computed again. The level, how
        much the runner gives up, is only noted here."""
        self.scheduler.forget_kv()
        self.sleep_level = level

    def wake(self) -> None:
        self.sleep_level = None

    def num_steady_steps(self) -> int:
        """For how many steps from now each would compute the newest token of every running sequence, and nothing
        else, if nobody comes or goes in between. No sequence ends in them; 0 too where a token may end one early."""
        if self._texts or any(_may_stop_early(sequence) for sequence in self.scheduler.running):
            return 0
        return self.scheduler.num_steady_steps()

    def advance(self, generate: Callable[[Sequence, int], List[int]], ends_s: List[float]) -> list[Output]:
        """Takes one step for each of `ends_s`, at most `num_steady_steps`, as if taken one by one.

        `generate` gives a running sequence so many tokens. One output for each sequence, with all of them. What has
        to be copied between the tiers comes with the next batch.
        """
        running, gaps = list(self.scheduler.running), [after - before for before, after in pairwise(ends_s)]
        tokens = [generate(sequence, len(ends_s)) for sequence in running]
        for sequence, new in zip(running, tokens, strict=True):
            assert sequence.last_token_s is not None
            self.stats.next_token_s.observe(ends_s[0] - sequence.last_token_s)
            sequence.last_token_s = ends_s[-1]
            sequence.tokens += new
        for gap in gaps:
            self.stats.next_token_s.observe(gap, len(running))
        self.stats.num_output_tokens += len(running) * len(ends_s)
        self.stats.step_tokens.observe(len(running), len(ends_s))
        self._stepped_s = ends_s[-1]
        self.scheduler.compute_steadily(len(ends_s))
        return [_output(sequence, tuple(new), "") for sequence, new in zip(running, tokens, strict=True)]

    def _take(self, chunk: Chunk, sampled: Sampled, now_s: float) -> Iterator[Output]:
        sequence = chunk.sequence
        # A preempted prefill tells again what it told.
        sequence.prompt_logprobs[chunk.start :] = sampled.prompt_logprobs
        if chunk.draft:
            self._learn(chunk, len(sampled.token_ids) - 1)
        for number, token in enumerate(sampled.token_ids):
            if number:
                # A right guess: its KV was computed with the chunk.
                self.scheduler.computed(Chunk(sequence, len(sequence.tokens) - 1, 1))
            logprobs = sampled.logprobs[number : number + 1]
            output = self._append(sequence, token, now_s)
            yield replace(output, logprobs=logprobs, prompt_logprobs=_told_once(sequence))
            if output.finish_reason is not None:
                return

    def _learn(self, chunk: Chunk, num_accepted: int) -> None:
        self.stats.drafts.observe(len(chunk.draft), num_accepted)
        if chunk.sequence.lookup is not None:
            chunk.sequence.lookup.learn(num_accepted)

    def _pool(self, chunk: Chunk, pooled: Pooled) -> Iterator[Output]:
        sequence, pooling = chunk.sequence, chunk.sequence.request.pooling
        # A preempted prefill begins again.
        is_added = pooling is Pooling.MEAN and chunk.start > 0
        sequence.vector = sequence.vector + pooled.vector if is_added else pooled.vector
        if chunk.ends:
            vector = sequence.vector / len(sequence.tokens) if pooling is Pooling.MEAN else sequence.vector
            self.stats.num_prompt_tokens += len(sequence.tokens)
            self._finish(sequence, FinishReason.STOP)
            yield replace(_output(sequence, (), ""), vector=vector)

    def _append(self, sequence: Sequence, token: int, now_s: float) -> Output:
        request = sequence.request
        if sequence.last_token_s is None:
            self.stats.num_prompt_tokens += len(request.prompt)
            self.stats.first_token_s.observe(now_s - request.arrived_s)
            sequence.first_token_s = now_s
        else:
            self.stats.next_token_s.observe(now_s - sequence.last_token_s)
        self.stats.num_output_tokens += 1
        sequence.last_token_s = now_s
        sequence.tokens.append(token)
        if sequence.structure is not None and not sequence.structure.accept(token):
            ended = self._end(sequence, token, "", FinishReason.ERROR, error=sequence.structure.fault)
            return replace(ended, faulty_field=sequence.structure.field)
        sampling = request.sampling
        num_output_tokens = len(sequence.tokens) - len(request.prompt)
        may_stop = num_output_tokens >= sampling.min_tokens
        if may_stop and token in sampling.eos_token_ids:
            return self._end(sequence, token, "", FinishReason.STOP)
        if may_stop and token in sampling.stop_token_ids:
            return self._end(sequence, token, "", FinishReason.STOP, stop_reason=token)
        stream = self._texts.get(request.id)
        text = stream.push(token, may_stop) if stream else ""
        if stream and stream.matched is not None:
            return self._end(sequence, token, text, FinishReason.STOP, stop_reason=stream.matched)
        if sequence.structure is not None and sequence.structure.is_complete:
            return self._end(sequence, token, text, FinishReason.STOP)
        if num_output_tokens == sampling.max_tokens:
            return self._end(sequence, token, text, FinishReason.LENGTH)
        return Output(request.id, (token,), text, sequence.num_cached_tokens or 0, num_output_tokens)

    def _end(
        self,
        sequence: Sequence,
        token: int,
        text: str,
        reason: FinishReason,
        stop_reason: str | int | None = None,
        error: str | None = None,
    ) -> Output:
        stream = self._texts.get(sequence.request.id)
        text += stream.flush() if stream else ""
        self.stats.requests.observe(sequence)
        self._finish(sequence, reason)
        return _output(sequence, (token,), text, stop_reason=stop_reason, error=error)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self.scheduler.finish(sequence, reason)
        self._texts.pop(sequence.request.id, None)
        self.stats.finished[reason] += 1

    def __repr__(self) -> str:
        return f"<EngineCore {self.scheduler!r}>"


def _may_stop_early(sequence: Sequence) -> bool:
    sampling = sequence.request.sampling
    return bool(sampling.eos_token_ids or sampling.stop_token_ids or sequence.structure)


def _told_once(sequence: Sequence) -> tuple[TokenLogprobs, ...]:
    told = tuple(sequence.prompt_logprobs)
    sequence.prompt_logprobs.clear()
    return told


def _output(
    sequence: Sequence,
    token_ids: tuple[int, ...],
    text: str,
    stop_reason: str | int | None = None,
    error: str | None = None,
) -> Output:
    return Output(
        request_id=sequence.request.id,
        token_ids=token_ids,
        text=text,
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_output_tokens=sequence.num_output_tokens,
        finish_reason=sequence.finish_reason,
        stop_reason=stop_reason,
        error=error,
    )
