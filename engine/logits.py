"""What a request changes in its logits before a token is chosen, and what it wants told of them.

Knows logits, penalties, biases, forbidden tokens and logprobs. Must not know how a token is drawn, or the model.

All works on flat indices into [rows, vocabulary], so that one gather and one scatter serve the whole batch.
"""

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.sampling import TokenLogprobs
from engine.seen import SeenTokens
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits: those of the token that will be number `position` of the sequence's output, from 0."""

    sequence: Sequence
    position: int


def adjust(logits: Tensor, rows: List[Row]) -> None:
    """[rows, vocabulary] float32, changed in place: penalties, then biases, then what must not be chosen."""
    _penalise(logits, rows)
    _add(logits, [row.sequence.request.sampling.logit_bias for row in rows])
    _forbid(logits, [_early_stops(row) for row in rows])
    _mask(logits, rows)


def logprobs_of(logits: Tensor, token_ids: List[int], num_top: List[int]) -> list[TokenLogprobs]:
    """For each row of [rows, vocabulary] its token's logprob, and those of its `num_top` likeliest tokens."""
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, indices_on(logits, token_ids)[:, None]).squeeze(1).tolist()
    values, tokens = (found.tolist() for found in logprobs.topk(min(max(num_top), logits.shape[1]), dim=-1))
    return [
        TokenLogprobs(token_id, chosen[row], tuple(zip(tokens[row][:count], values[row][:count], strict=True)))
        for row, (token_id, count) in enumerate(zip(token_ids, num_top, strict=True))
    ]


def indices_on(like: Tensor, values: List[int]) -> Tensor:
    """To index `like` with, on its device."""
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _penalise(logits: Tensor, rows: List[Row]) -> None:
    penalised = [index for index, row in enumerate(rows) if row.sequence.request.sampling.is_penalised]
    if not penalised:
        return
    seen = [_seen(rows[index].sequence) for index in penalised]
    samplings = [rows[index].sequence.request.sampling for index in penalised]
    places = _places(logits, penalised, [each.token_ids for each in seen])

    def spread(values: Iterable[float]) -> Tensor:
        repeated = np.repeat(np.fromiter(values, np.float32), [len(each.token_ids) for each in seen])
        return torch.from_numpy(repeated).to(logits.device)

    counts = torch.from_numpy(np.concatenate([each.counts for each in seen])).to(logits.device)
    repetition = spread(sampling.repetition_penalty for sampling in samplings)
    values = logits.view(-1)[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= spread(sampling.frequency_penalty for sampling in samplings) * counts
    values -= spread(sampling.presence_penalty for sampling in samplings) * (counts > 0)
    logits.view(-1)[places] = values


def _seen(sequence: Sequence) -> SeenTokens:
    if sequence.seen is None:
        sequence.seen = SeenTokens(sequence.request.prompt)
    sequence.seen.follow(sequence.tokens)
    return sequence.seen


def _add(logits: Tensor, biases: List[tuple[tuple[int, float], ...]]) -> None:
    biased = [index for index, bias in enumerate(biases) if bias]
    if biased:
        token_ids = [np.array([token_id for token_id, _ in biases[index]]) for index in biased]
        values = torch.tensor([value for index in biased for _, value in biases[index]], device=logits.device)
        logits.view(-1)[_places(logits, biased, token_ids)] += values


def _early_stops(row: Row) -> frozenset[int]:
    """The token now drawn may stop the sequence if it is number `min_tokens` or a later one."""
    sampling = row.sequence.request.sampling
    return sampling.eos_token_ids | sampling.stop_token_ids if row.position + 1 < sampling.min_tokens else frozenset()


def _forbid(logits: Tensor, forbidden: List[frozenset[int]]) -> None:
    some = [index for index, token_ids in enumerate(forbidden) if token_ids]
    if some:
        token_ids = [np.array(list(forbidden[index])) for index in some]
        logits.view(-1)[_places(logits, some, token_ids)] = float("-inf")


def _mask(logits: Tensor, rows: List[Row]) -> None:
    """Leaves the tokens that each row's structure allows; its bits are those of the token ids, lowest first."""
    structures = [(index, row.sequence.structure) for index, row in enumerate(rows)]
    masked = [(index, structure.mask()) for index, structure in structures if structure is not None]
    if masked:
        bits = np.stack([mask for _, mask in masked]).view(np.uint8)
        allowed = np.unpackbits(bits, axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)
        indices = indices_on(logits, [index for index, _ in masked])
        logits[indices] = logits[indices].masked_fill(~torch.from_numpy(allowed).to(logits.device), float("-inf"))


def _places(logits: Tensor, rows: List[int], token_ids: List["np.ndarray[tuple[int], np.dtype[np.int64]]"]) -> Tensor:
    starts = np.repeat(np.array(rows) * logits.shape[1], [len(each) for each in token_ids])
    return torch.from_numpy(starts + np.concatenate(token_ids)).to(logits.device)
