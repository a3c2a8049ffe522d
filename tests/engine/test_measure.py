from pathlib import Path

import pytest

from engine.measure import Job, measure
from tests.engine.test_app import model

__all__ = ["model"]


def test_a_job_is_measured_and_answered(model: Path) -> None:
    job = Job(
        model=str(model),
        dtype="float32",
        quantized="auto",
        threads=1,
        clock="wall",
        prompts=[[1, 2, 3], [4, 5]],
        num_tokens=4,
        batches=[1, 2],
        prefill=[1] * 20,
        turn=[2] * 40,
        turn_tokens=[3],
        questions=[[1, 2], [9]],
        num_answer_tokens=3,
        num_rounds=2,
    )
    figures = measure(job)
    assert set(figures.decode) == {1, 2}
    assert figures.prefill > 0
    assert figures.turns_ms[3] > 0
    assert [len(answer) for answer in figures.answers] == [3, 3]
    assert figures.answers == measure(job).answers
    assert figures.anonymous_mib > 10


def test_what_a_job_lacks_is_named() -> None:
    import msgspec

    with pytest.raises(msgspec.ValidationError, match="missing required field `dtype`"):
        msgspec.json.decode(b'{"model": "m"}', type=Job)
