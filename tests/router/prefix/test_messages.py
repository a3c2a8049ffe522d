"""OpenAI's message shapes, made plain for templates."""

from typing import Any

import pytest

from router.prefix.messages import MEDIA_MARK, keyed_content, plain_messages


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("content", "plain"),
    [
        ("as it is", "as it is"),
        (None, ""),
        ([], ""),
        ([text("one"), text("two")], "one\ntwo"),
        ([{"type": "input_text", "text": "a"}, "b"], "a\nb"),
        (f"a mark {MEDIA_MARK} of the client's", f"a mark {MEDIA_MARK} of the client's"),
    ],
)
def test_content_becomes_one_text(content: object, plain: str) -> None:
    messages, media_keys = plain_messages([{"role": "user", "content": content, "name": "kim"}])
    assert messages == [{"role": "user", "content": plain, "name": "kim"}]
    assert media_keys == []


def test_a_message_without_content_has_an_empty_one() -> None:
    assert plain_messages([{"role": "assistant"}])[0] == [{"role": "assistant", "content": ""}]


def test_an_image_leaves_a_mark_where_it_stood_and_a_key_of_what_it_is() -> None:
    one, other = image("data:1"), image("data:2")
    messages, keys = plain_messages(
        [{"role": "user", "content": [text("see"), one, text("and")]}, {"role": "user", "content": [other, one]}]
    )
    assert [message["content"] for message in messages] == [f"see\n{MEDIA_MARK}\nand", f"{MEDIA_MARK}\n{MEDIA_MARK}"]
    assert keys[0] == keys[2] != keys[1]


def test_no_mark_is_false_where_there_are_images() -> None:
    content = [text(f"mine: {MEDIA_MARK}"), image("data:1")]
    messages, keys = plain_messages([{"role": "user", "content": content}, {"role": "user", "content": MEDIA_MARK}])
    assert sum(message["content"].count(MEDIA_MARK) for message in messages) == len(keys) == 1


@pytest.mark.parametrize("part", [{"type": "text"}, {"type": "text", "text": 3}, {"no": "type"}, 7, None])
def test_a_part_of_no_known_form_counts_as_media(part: object) -> None:
    messages, keys = plain_messages([{"role": "user", "content": [part]}])
    assert (messages[0]["content"], len(keys)) == (MEDIA_MARK, 1)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [('{"x": 1}', {"x": 1}), ("not JSON", "not JSON"), ({"x": 1}, {"x": 1}), ("[" * 100_000, "[" * 100_000)],
)
def test_arguments_of_tool_calls_are_given_as_objects(arguments: object, given: object) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages, _ = plain_messages([{"role": "assistant", "content": None, "tool_calls": [call, 3, {"function": 4}]}])
    assert messages[0]["tool_calls"] == [{**call, "function": {"name": "f", "arguments": given}}, 3, {"function": 4}]


def test_the_clients_own_messages_stay_as_they_were() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    original = {"role": "assistant", "content": [text("a")], "tool_calls": [call]}
    plain_messages([original])
    assert original == {"role": "assistant", "content": [text("a")], "tool_calls": [call]}
    assert call["function"]["arguments"] == "{}"


def test_keyed_content_has_keys_in_place_of_what_is_no_text() -> None:
    one, other = image("data:1"), image("data:2")
    keyed = keyed_content([text("a"), one, "b", other, one])
    assert isinstance(keyed, list)
    assert (keyed[0], keyed[2]) == (text("a"), "b")
    assert keyed[1] == keyed[4] != keyed[3]
    assert keyed_content([keyed[1]]) != [keyed[1]]
    contents: list[object] = ["as it is", None, []]
    assert list(map(keyed_content, contents)) == contents
