"""Chooses the next token behind each chunk, and judges guesses.

Knows logits, chunks and each sequence's sampling. Must not know the model, how a token is drawn (drawing.py) or text.
"""

from collections.abc import Iterator
from collections.abc import Sequence as List

from torch import Tensor

from engine.batch import Chunk
from engine.drawing import draw
from engine.logits import Row, adjust, indices_on, logprobs_of
from engine.sampling import Result, Sampled, TokenLogprobs


def sample(logits: Tensor, chunks: List[Chunk]) -> list[Result]:
    """[rows, vocabulary] float32 logits, `num_rows` of each chunk in order -> what was chosen behind each chunk: a
    token id, a Sampled where more was asked for or guessed, None where the prompt goes on. May change `logits`."""
    num_rows = [chunk.num_rows for chunk in chunks]
    if all(chunk.sequence.is_plain for chunk, count in zip(chunks, num_rows, strict=True) if count):
        return _plainly(logits, chunks, num_rows)
    told = _prompt_logprobs(logits, chunks)
    if told:
        logits = logits[indices_on(logits, _sampling_rows(chunks))]
    sampled = iter(_sample_rows(logits, [chunk for chunk in chunks if chunk.samples]))
    chosen = [next(sampled) if chunk.samples else None for chunk in chunks]
    return [_with_prompt(each, told[index]) if index in told else each for index, each in enumerate(chosen)]


def _plainly(logits: Tensor, chunks: List[Chunk], num_rows: List[int]) -> list[Result]:
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    results: list[Result] = []
    first = 0
    for chunk, count in zip(chunks, num_rows, strict=True):
        if count > 1:
            results.append(Sampled(_confirmed(tokens[first : first + count], chunk.draft)))
        else:
            results.append(tokens[first] if count else None)
        first += count
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
    untouched = logits[indices_on(logits, telling)] if telling else logits
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
    drawn = [index for index, row in enumerate(rows) if row.sequence.request.sampling.temperature > 0]
    if len(drawn) == len(rows):
        return draw(logits, rows)
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    if drawn:
        chosen = draw(logits[indices_on(logits, drawn)], [rows[index] for index in drawn])
        for index, token in zip(drawn, chosen, strict=True):
            tokens[index] = token
    return tokens
