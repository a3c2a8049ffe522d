"""What is kept of a conversation, and what is asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BodyTooLarge, InvalidRequest
from router.transports.chunks import decode
from router.transports.conversation import LEAST_PREFILL_CHARS, Answering, Conversation


def told(text: str) -> Answering:
    answer = Answering()
    answer.add(decode(json.dumps({"choices": [{"delta": {"content": text}}]}).encode()))
    return answer


def messages_of(body: bytes) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(body)["messages"]
    return found


def test_a_turn_has_what_was_said_and_answered_before() -> None:
    conversation = Conversation({"model": "m"}, 10_000)
    conversation.append("one")
    conversation.commit()
    conversation.answered(told("two"))
    body = conversation.commit([{"role": "user", "content": "three"}])
    assert [each["content"] for each in messages_of(body)] == ["one", "two", "three"]
    assert json.loads(body)["stream"] is True


def test_tool_calls_are_put_together_from_their_pieces() -> None:
    answer = Answering()
    for piece in (
        {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{}"}},
    ):
        answer.add(decode(json.dumps({"choices": [{"delta": {"tool_calls": [piece]}}]}).encode()))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert answer.message() == {"role": "assistant", "content": None, "tool_calls": [call]}


def test_a_prefill_is_asked_for_once_there_is_enough_and_never_twice_at_a_time() -> None:
    conversation = Conversation({"model": "m"}, 100_000)
    conversation.append("x" * (LEAST_PREFILL_CHARS - 1))
    assert conversation.prefill_body() is None
    conversation.append("x")
    body = conversation.prefill_body()
    assert body is not None
    assert messages_of(body)[-1]["content"] == "x" * LEAST_PREFILL_CHARS
    conversation.append("y" * LEAST_PREFILL_CHARS)
    assert conversation.prefill_body() is None, "one runs"
    conversation.prefilled()
    assert conversation.prefill_body() is not None
    conversation.prefilled()
    assert conversation.prefill_body() is None, "nothing is new"


def test_a_prefill_is_a_prefix_of_its_turn() -> None:
    conversation = Conversation({"model": "m"}, 100_000, [{"role": "system", "content": "s"}])
    conversation.append("x" * LEAST_PREFILL_CHARS)
    prefill = messages_of(conversation.prefill_body() or b"")
    conversation.append(" more")
    turn = messages_of(conversation.commit())
    assert prefill[:-1] == turn[:-1]
    assert str(turn[-1]["content"]).startswith(str(prefill[-1]["content"]))


@pytest.mark.parametrize("fields", [{}, {"model": 3}, {"model": "m", "n": 2}, {"model": "m", "stream": False}])
def test_a_wrong_opening_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Conversation(fields, 1000)
    assert caught.value.param in ("model", "n", "stream")


def test_a_commit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Nothing was said"):
        Conversation({"model": "m"}, 1000).commit()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.text(max_size=40)),
        st.tuples(st.just("commit"), st.text(max_size=40)),
        st.tuples(st.just("answer"), st.text(max_size=40)),
    ),
    max_size=40,
)


@given(steps)
def test_what_is_kept_never_passes_the_bound_by_more_than_an_answer(path: list[tuple[str, str]]) -> None:
    conversation, is_open = Conversation({"model": "m"}, 400), False
    for kind, text in path:
        before = list(conversation.messages)
        try:
            if kind == "append":
                conversation.append(text)
            elif kind == "commit" and not is_open:
                conversation.commit([{"role": "user", "content": text}])
                is_open = True
            elif kind == "answer" and is_open:
                conversation.answered(told(text))
                is_open = False
        except BodyTooLarge:
            assert conversation.messages == before
        kept = [each for each in conversation.messages if isinstance(each, dict) and each["role"] == "user"]
        assert len(json.dumps(kept, ensure_ascii=False).encode()) < 400 + 60 * (len(kept) + 1)
