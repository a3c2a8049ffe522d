"""What is asked of the feed, and answered in time, late or not at all."""

import asyncio
from array import array

import pytest

from router.workers import questions
from router.workers.frames import Explain, Explained, Exported, Find, Found
from router.workers.questions import Question, Questions


async def test_an_answer_belongs_to_its_question() -> None:
    told: list[Question] = []

    def tell(question: Question) -> bool:
        told.append(question)
        return True

    asked = Questions(tell)
    one, other = asyncio.create_task(asked.match([1, 2])), asyncio.create_task(asked.export())
    third = asyncio.create_task(asked.explain(b"body", (("a", "b"),)))
    fourth = asyncio.create_task(asked.lessons())
    await asyncio.sleep(0)
    assert repr(asked) == "<Questions 4 open>"
    assert told[0] == Find(0, array("Q", [1, 2]).tobytes())
    assert told[2] == Explain(2, b"body", (("a", "b"),))
    asked.heard(Explained(2, 404, b"none"))
    asked.heard(Exported(3, b"learned"))
    asked.heard(Exported(1, b"all"))
    asked.heard(Found(0, {"a": 2}, {"a": 1}))
    asked.heard(Found(77, {}, {}))
    assert await one == ({"a": 2}, {"a": 1})
    assert await other == b"all"
    assert await fourth == b"learned"
    assert await third == (404, b"none")
    assert repr(asked) == "<Questions 0 open>"


async def test_without_a_feed_or_in_vain_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "TIMEOUT_S", 0.01)
    assert await Questions(lambda _: False).match([1]) == ({}, {})
    silent = Questions(lambda _: True)
    assert await silent.match([1]) == ({}, {})
    assert await silent.export() == await silent.lessons() == b"\x90"
    assert await silent.explain(b"", ()) is None
    assert repr(silent) == "<Questions 0 open>"
