"""Chooses the next token of each row of logits.

Knows logits and each sequence's sampling. Must not know the model, the batch's shape or text.

A row's draw is the inverse of its cumulated probabilities at one number, and that number is a hash of the request's
seed and the position in its output: no state, nothing to restore after a preemption, and nothing that the other
rows could disturb. It makes guesses lossless for drawn tokens, too: at a position the same token is drawn, whether
one step or several computed what stands before it.
"""

import struct
from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from engine.batch import Chunk
from engine.logits import Row, adjust, logprobs_of
from engine.sampling import Result, Sampled, Sampling, TokenLogprobs

# A nucleus is looked for among so many of the likeliest tokens before the whole vocabulary is sorted.
_NUCLEUS_CANDIDATES = 256


def sample(logits: Tensor, chunks: List[Chunk]) -> list[Result]:
    """[rows, vocabulary] float32 logits, `num_rows` of each chunk in order -> what was chosen behind each chunk: a
    token id, a Sampled where more was asked for or guessed, None where the prompt goes on. May change `logits`."""
    if all(chunk.sequence.is_plain for chunk in chunks if chunk.num_rows):
        return _plainly(logits, chunks)
    told = _prompt_logprobs(logits, chunks)
    if told:
        logits = logits[_on(logits, _sampling_rows(chunks))]
    sampled = iter(_sample_rows(logits, [chunk for chunk in chunks if chunk.samples]))
    chosen = [next(sampled) if chunk.samples else None for chunk in chunks]
    return [_with_prompt(each, told[index]) if index in told else each for index, each in enumerate(chosen)]


def _plainly(logits: Tensor, chunks: List[Chunk]) -> list[Result]:
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    results: list[Result] = []
    first = 0
    for chunk in chunks:
        if chunk.draft:
            results.append(Sampled(_confirmed(tokens[first : first + chunk.num_rows], chunk.draft)))
        else:
            results.append(tokens[first] if chunk.num_rows else None)
        first += chunk.num_rows
    return results


def _confirmed(tokens: List[int], draft: List[int]) -> tuple[int, ...]:
    """The first token is certain; each other one if the guess before it was right."""
    num_right = 0
    while num_right < len(draft) and tokens[num_right] == draft[num_right]:
        num_right += 1
    return tuple(tokens[: num_right + 1])


def _prompt_logprobs(logits: Tensor, chunks: List[Chunk]) -> dict[int, tuple[TokenLogprobs, ...]]:
    """By the chunk's index. The row of each token tells of the token that follows it."""
    told, first = {}, 0
    for index, chunk in enumerate(chunks):
        followers = chunk.sequence.tokens[chunk.start + 1 : chunk.end + 1] if chunk.sequence.is_telling_prompt else []
        if followers:
            num_top = [chunk.sequence.request.sampling.num_top_logprobs or 0] * len(followers)
            told[index] = tuple(logprobs_of(logits[first : first + len(followers)], followers, num_top))
        first += chunk.num_rows
    return told


def _sampling_rows(chunks: List[Chunk]) -> list[int]:
    """Those behind which a token is wanted: the last of a chunk, and those of its guesses."""
    end, rows = 0, list[int]()
    for chunk in chunks:
        end += chunk.num_rows
        if chunk.samples:
            rows += range(end - 1 - len(chunk.draft), end)
    return rows


def _with_prompt(result: Sampled | int | None, logprobs: tuple[TokenLogprobs, ...]) -> Sampled:
    if isinstance(result, Sampled):
        return Sampled(result.token_ids, result.logprobs, logprobs)
    return Sampled(() if result is None else (result,), (), logprobs)


def _sample_rows(logits: Tensor, chunks: List[Chunk]) -> Iterator[Sampled | int]:
    """A row for each chunk and each of its guesses, if there is any."""
    if not chunks:
        return
    rows = [
        Row(chunk.sequence, chunk.sequence.num_output_tokens + guess)
        for chunk in chunks
        for guess in range(1 + len(chunk.draft))
    ]
    telling = [index for index, row in enumerate(rows) if row.sequence.request.sampling.num_top_logprobs is not None]
    # Before they are adjusted: what is told are the model's own probabilities.
    untouched = logits[_on(logits, telling)] if telling else logits
    adjust(logits, rows)
    tokens = _choose(logits, rows)
    num_top = [rows[index].sequence.request.sampling.num_top_logprobs or 0 for index in telling]
    told = logprobs_of(untouched, [tokens[index] for index in telling], num_top) if telling else []
    logprobs = dict(zip(telling, told, strict=True))
    first = 0
    for chunk in chunks:
        yield _result(chunk, tokens, logprobs, first)
        first += 1 + len(chunk.draft)


def _result(chunk: Chunk, tokens: List[int], logprobs: dict[int, TokenLogprobs], first: int) -> Sampled | int:
    if first not in logprobs and not chunk.draft:
        return tokens[first]
    confirmed = _confirmed(tokens[first : first + 1 + len(chunk.draft)], chunk.draft)
    told = range(first, first + len(confirmed)) if first in logprobs else ()
    return Sampled(confirmed, tuple(logprobs[index] for index in told))


def _choose(logits: Tensor, rows: List[Row]) -> list[int]:
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [index for index, row in enumerate(rows) if row.sequence.request.sampling.temperature > 0]
    if drawn:
        chosen = _draw(logits[_on(logits, drawn)], [rows[index] for index in drawn])
        for index, token in zip(drawn, chosen, strict=True):
            tokens[index] = token
    return tokens


def _draw(logits: Tensor, rows: List[Row]) -> list[int]:
    samplings = [row.sequence.request.sampling for row in rows]
    logits /= _column([sampling.temperature for sampling in samplings], logits)
    _drop_improbable(logits, samplings)
    uniform = torch.tensor([[_uniform(row)] for row in rows], dtype=torch.float64, device=logits.device)
    is_cut = [sampling.top_k is not None or sampling.top_p < 1 for sampling in samplings]
    tokens = [0] * len(rows)
    for draw, is_for_cut in ((_draw_whole, False), (_draw_cut, True)):
        if is_for_cut not in is_cut:
            continue
        some = [index for index, cut in enumerate(is_cut) if cut is is_for_cut]
        places = _on(logits, some)
        drawn = draw(logits[places], uniform[places], [samplings[index] for index in some])
        for index, token in zip(some, drawn, strict=True):
            tokens[index] = token
    return tokens


def _drop_improbable(logits: Tensor, samplings: List[Sampling]) -> None:
    if any(sampling.min_p > 0 for sampling in samplings):
        least = logits.amax(dim=-1, keepdim=True) + _column([sampling.min_p for sampling in samplings], logits).log()
        logits.masked_fill_(logits < least, float("-inf"))


def _draw_whole(logits: Tensor, uniform: Tensor, samplings: List[Sampling]) -> list[int]:
    """From all tokens. Cumulated in vocabulary order and in float64: near ties and rounding then move the draw as
    little as can be."""
    drawn: list[int] = _invert(logits.softmax(dim=-1).double(), uniform).tolist()
    return drawn


def _draw_cut(logits: Tensor, uniform: Tensor, samplings: List[Sampling]) -> list[int]:
    """From what top_k, then top_p leave. Looks among the likeliest few first: to sort a vocabulary takes longer than
    a small model's step."""
    top_k = [sampling.top_k or 0 for sampling in samplings]
    nucleus = _Nucleus.of(logits, samplings, max(_NUCLEUS_CANDIDATES, *top_k))
    tokens = nucleus.draw(uniform)
    beyond = [index for index, is_whole in enumerate(nucleus.is_whole()) if not is_whole]
    if beyond:
        places = _on(logits, beyond)
        all_of_them = _Nucleus.of(logits[places], [samplings[index] for index in beyond], logits.shape[1])
        for index, token in zip(beyond, all_of_them.draw(uniform[places]), strict=True):
            tokens[index] = token
    return tokens


@dataclass(frozen=True, slots=True)
class _Nucleus:
    """The likeliest tokens of each row, best first: ids and float64 probabilities, each [rows, candidates]; and the
    rows' top_p, [rows, 1]. What top_k leaves out has probability 0, the rest of it sums to 1 over the vocabulary."""

    tokens: Tensor
    probabilities: Tensor
    top_p: Tensor

    @classmethod
    def of(cls, logits: Tensor, samplings: List[Sampling], num_candidates: int) -> Self:
        values, tokens = logits.topk(min(num_candidates, logits.shape[1]), dim=-1)
        values = values.double()
        top_k = [sampling.top_k or logits.shape[1] for sampling in samplings]
        ranks = torch.arange(values.shape[1], device=logits.device)
        values.masked_fill_(ranks >= _column(top_k, ranks), float("-inf"))
        total = values.logsumexp(dim=-1, keepdim=True)
        free = [index for index, sampling in enumerate(samplings) if sampling.top_k is None]
        if free:
            places = _on(logits, free)
            total[places] = logits[places].double().logsumexp(dim=-1, keepdim=True)
        return cls(tokens, (values - total).exp(), _column([sampling.top_p for sampling in samplings], values))

    def is_whole(self) -> list[bool]:
        """Whether a row's candidates reach its top_p, or nothing with a chance is left beyond them."""
        reached = self.probabilities.sum(dim=-1, keepdim=True)
        whole: list[bool] = ((reached >= self.top_p) | (reached > 1 - 1e-9)).squeeze(1).tolist()
        return whole

    def draw(self, uniform: Tensor) -> list[int]:
        """Up to the token with which a row reaches its top_p, in vocabulary order."""
        before = self.probabilities.cumsum(dim=-1) - self.probabilities
        kept = self.probabilities.masked_fill(before >= self.top_p, 0)
        tokens, order = self.tokens.sort(dim=-1)
        drawn = _invert(kept.gather(1, order), uniform)
        chosen: list[int] = tokens.gather(1, drawn[:, None]).squeeze(1).tolist()
        return chosen


def _invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """[rows, tokens] float64, [rows, 1] in [0, 1) -> [rows] columns."""
    cumulated = probabilities.cumsum(dim=-1)
    return torch.searchsorted(cumulated, uniform * cumulated[:, -1:], right=True).squeeze(-1)


def _on(like: Tensor, values: List[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _column(values: List[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _uniform(row: Row) -> float:
    """In [0, 1), from 52 bits of the hash: with 53, the product with a total above 1 could round up to it."""
    key = struct.pack("<qq", row.sequence.request.sampling.seed, row.position)
    return float((xxh3_64_intdigest(key) >> 12) * 2.0**-52)
