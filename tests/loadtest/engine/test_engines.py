import sys
from pathlib import Path

import msgspec
import pytest

from loadtest.engine.engines import Contender, contenders, run
from loadtest.engine.job import Figures, Job
from loadtest.errors import LoadError

JOB = Job("folder", "float32", "never", 1, "cpu", [[1]], 2, [1], [1, 2], [1], [1], [[5]], 2, 1)


def script(code: str, **options: str) -> Contender:
    return Contender("some", options.pop("dtype", "float32"), (sys.executable, "-c", code), **options)


def test_an_engine_gets_the_job_in_its_own_format_and_gives_figures() -> None:
    code = """
import json, os, sys
job = json.load(sys.stdin)
assert (job["dtype"], job["quantized"], job["model"], os.environ["OMP_NUM_THREADS"]) == ("bfloat16", "small", "m", "1")
print(json.dumps({"decode": {"1": 2.5}, "prefill": 9, "turns_ms": {}, "answers": [[7]], "load_s": 1}))
"""
    assert run(script(code, dtype="bfloat16", quantized="small", model="m"), JOB) == Figures({1: 2.5}, 9, {}, [[7]], 1)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("import sys; print('boom', file=sys.stderr); sys.exit(3)", "some float32: exit status 3: boom"),
        ("import sys; sys.exit(1)", "exit status 1: it said nothing"),
        ("print('no json')", "some float32: JSON is malformed"),
    ],
)
def test_an_engine_that_fails_is_named_with_what_it_said(code: str, complaint: str) -> None:
    with pytest.raises(LoadError, match=complaint):
        run(script(code), JOB)


def test_transformers_in_float32_comes_first_and_vllm_only_where_it_is() -> None:
    labels = [contender.label for contender in contenders("m.gguf", None)]
    assert labels[0] == "transformers float32"
    assert labels[-3:] == ["pointsman float32", "pointsman bfloat16", "pointsman bfloat16, small"]
    names = [contender.label for contender in contenders("folder", Path("python"))]
    assert "vllm float32" in names
    assert not any("4 bit" in name for name in names)


def test_the_job_is_what_our_engine_reads() -> None:
    from engine.measure import Job as Read

    assert msgspec.json.decode(msgspec.json.encode(JOB), type=Read).questions == [[5]]
