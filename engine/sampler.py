"""Chooses the next token of each row of logits.

Knows logits and each sequence's sampling. Must not know the model, the batch's shape or text.

A row's draw is the inverse of its cumulated probabilities at one number, and that number is a hash of the request's
seed and the position in its output: no state, nothing to restore after a preemption, and nothing that the other
rows could disturb.
"""

import struct
from collections.abc import Sequence as List

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from engine.sampling import Sampling
from engine.sequence import Sequence


def sample(logits: Tensor, sequences: List[Sequence]) -> list[int]:
    """[rows, vocabulary] float32 logits, one row for each sequence -> one token id for each. Changes `logits`."""
    for row, sequence in zip(logits, sequences, strict=True):
        _forbid_early_stop(row, sequence)
    tokens = logits.argmax(dim=-1)
    drawn = [index for index, sequence in enumerate(sequences) if sequence.request.sampling.temperature > 0]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        tokens[rows] = _draw(logits[rows], [sequences[index] for index in drawn])
    chosen: list[int] = tokens.tolist()
    return chosen


def _forbid_early_stop(row: Tensor, sequence: Sequence) -> None:
    sampling = sequence.request.sampling
    stops = sampling.eos_token_ids | sampling.stop_token_ids
    # The token now drawn may stop the sequence if it is number `min_tokens` or a later one.
    if stops and sequence.num_output_tokens + 1 < sampling.min_tokens:
        row[list(stops)] = float("-inf")


def _draw(logits: Tensor, sequences: List[Sequence]) -> Tensor:
    samplings = [sequence.request.sampling for sequence in sequences]
    logits = logits / _column([sampling.temperature for sampling in samplings], logits)
    for row, sampling in zip(logits, samplings, strict=True):
        _truncate(row, sampling)
    # Cumulated in vocabulary order and in float64: near ties and rounding then move the draw as little as can be.
    cumulated = logits.softmax(dim=-1).double().cumsum(dim=-1)
    uniform = _column([_uniform(sequence) for sequence in sequences], cumulated)
    return torch.searchsorted(cumulated, uniform * cumulated[:, -1:], right=True).squeeze(-1)


def _truncate(row: Tensor, sampling: Sampling) -> None:
    """Puts what min_p, top_k and top_p leave out at -inf, in this order."""
    if sampling.min_p > 0:
        row[row < row.max() + torch.tensor(sampling.min_p).log().item()] = float("-inf")
    if sampling.top_k is not None and sampling.top_k < row.numel():
        row[row < row.topk(sampling.top_k).values[-1]] = float("-inf")
    if sampling.top_p < 1:
        _truncate_to_nucleus(row, sampling.top_p)


def _truncate_to_nucleus(row: Tensor, top_p: float) -> None:
    """Keeps the most probable tokens up to the one with which they reach `top_p`."""
    ordered, tokens = row.softmax(dim=-1).sort(descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    row[tokens[before >= top_p]] = float("-inf")


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _uniform(sequence: Sequence) -> float:
    """In [0, 1), from 52 bits of the hash: with 53, the product with a total above 1 could round up to it."""
    key = struct.pack("<qq", sequence.request.sampling.seed, sequence.num_output_tokens)
    return float((xxh3_64_intdigest(key) >> 12) * 2.0**-52)
