"""Draws the tokens of rows with a temperature, as top_k, top_p and min_p leave them.

Knows logits and each row's sampling. Must not know chunks, guesses or what is done with a token.

A row's draw is the inverse of its cumulated probabilities at one number, and that number is a hash of the request's
seed and the position in its output: no state, nothing to restore after a preemption, and nothing that the other
rows could disturb. It makes guesses lossless for drawn tokens, too: at a position the same token is drawn, whether
one step or several computed what stands before it.
"""

import struct
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from xxhash import xxh3_64_intdigest

from engine.logits import Row, indices_on
from engine.sampling import Sampling

# A nucleus is looked for among so many of the likeliest tokens before the whole vocabulary is sorted.
_NUCLEUS_CANDIDATES = (256, 4096)
_BLOCK = 256


def draw(logits: Tensor, rows: List[Row]) -> list[int]:
    """[rows, vocabulary] float32 logits, changed -> a token id for each row."""
    samplings = [row.sequence.request.sampling for row in rows]
    logits /= _column([sampling.temperature for sampling in samplings], logits)
    _drop_improbable(logits, samplings)
    uniform = torch.tensor([[_uniform(row)] for row in rows], dtype=torch.float64, device=logits.device)
    cut = [index for index, sampling in enumerate(samplings) if sampling.top_k is not None or sampling.top_p < 1]
    if len(cut) == len(rows):
        return _draw_cut(logits, uniform, samplings)
    tokens = _draw_whole(logits, uniform)
    if cut:
        places = indices_on(logits, cut)
        drawn = _draw_cut(logits[places], uniform[places], [samplings[index] for index in cut])
        for index, token in zip(cut, drawn, strict=True):
            tokens[index] = token
    return tokens


def _drop_improbable(logits: Tensor, samplings: List[Sampling]) -> None:
    if any(sampling.min_p > 0 for sampling in samplings):
        least = logits.amax(dim=-1, keepdim=True) + _column([sampling.min_p for sampling in samplings], logits).log()
        logits.masked_fill_(logits < least, float("-inf"))


def _draw_whole(logits: Tensor, uniform: Tensor) -> list[int]:
    """From all tokens. Cumulated in vocabulary order and in float64: near ties and rounding then move the draw as
    little as can be. First by blocks of tokens, then within one: no table of the vocabulary's size is written."""
    probabilities = pad(logits, (0, -logits.shape[1] % _BLOCK), value=float("-inf")).softmax(dim=-1)
    blocks = probabilities.view(len(logits), -1, _BLOCK)
    ends = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = uniform * ends[:, -1:]
    chosen = torch.searchsorted(ends, target, right=True)
    begins = torch.where(chosen > 0, ends.gather(1, (chosen - 1).clamp(min=0)), 0)
    inside = blocks.gather(1, chosen[:, :, None].expand(-1, 1, _BLOCK)).squeeze(1).double().cumsum(dim=-1)
    # Rounding may leave the target behind the block's own end: then it is the last token that has a chance.
    place = torch.searchsorted(inside, torch.minimum(target - begins, _below(inside[:, -1:])), right=True)
    drawn: list[int] = (chosen * _BLOCK + place).squeeze(1).tolist()
    return drawn


def _draw_cut(logits: Tensor, uniform: Tensor, samplings: List[Sampling]) -> list[int]:
    """From what top_k, then top_p leave. Looks among the likeliest few first: to sort a vocabulary takes longer than
    a small model's step."""
    tokens = [0] * len(samplings)
    left = list(range(len(samplings)))
    for num_candidates in (*_NUCLEUS_CANDIDATES, logits.shape[1]):
        some = [samplings[index] for index in left]
        nucleus = _Nucleus.of(logits, some, max(num_candidates, *(sampling.top_k or 0 for sampling in some)))
        is_whole = nucleus.is_whole()
        for place, token in enumerate(nucleus.draw(uniform)):
            tokens[left[place]] = token
        beyond = [place for place, whole in enumerate(is_whole) if not whole]
        if not beyond or num_candidates >= logits.shape[1]:
            break
        left, places = [left[place] for place in beyond], indices_on(logits, beyond)
        logits, uniform = logits[places], uniform[places]
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
            places = indices_on(logits, free)
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


def _below(values: Tensor) -> Tensor:
    return torch.nextafter(values, torch.zeros_like(values))


def _column(values: List[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _uniform(row: Row) -> float:
    """In [0, 1), from 52 bits of the hash: with 53, the product with a total above 1 could round up to it."""
    key = struct.pack("<qq", row.sequence.request.sampling.seed, row.position)
    return float((xxh3_64_intdigest(key) >> 12) * 2.0**-52)
