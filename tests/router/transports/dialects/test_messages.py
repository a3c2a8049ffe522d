"""Anthropic's Messages API over chat engines."""

import asyncio
import json
from typing import Any

import pytest

from router.errors import ConnectionCut
from router.transports.dialects import messages_ask
from tests.router.transports.dialects.rig import calls, open_rig, stream, whole

PATH = "/v1/messages"
ASK: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


async def test_a_message_is_asked_and_answered() -> None:
    async with open_rig() as rig:
        asked = ASK | {"system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["x"], "top_k": 3}
        asking = rig.ask(PATH, asked, **{"x-api-key": "k"})
        assert await rig.sent() == {
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "top_k": 3,
            "max_tokens": 9,
            "stop": ["x"],
        }
        [relay] = rig.station.relays
        assert ("authorization", "Bearer k") in relay.request.headers
        (await rig.exchange()).answer(200, whole({"content": "yes"}))
        body = (await asking).json
        assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "end_turn")
        assert body["content"] == [{"type": "text", "text": "yes"}]
        assert body["usage"] == {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 8,
            "output_tokens": 3,
        }


async def test_a_stream_is_told_in_events_in_order() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, ASK | {"stream": True})
        exchange = await rig.exchange()
        exchange.head()
        pieces = calls((0, "c1", "f", '{"a":'), (0, None, None, "1}"), (1, "c2", "g", "{}"))
        exchange.send(stream({"reasoning": "hm"}, {"content": "He"}, {"content": "y"}, *pieces, finish="tool_calls"))
        exchange.end()
        events = (await asking).events
        assert [event["type"] for event in events] == [
            "message_start",
            *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
            *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
            *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
            *("content_block_start", "content_block_delta", "content_block_stop"),
            "message_delta",
            "message_stop",
        ]
        starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
        assert starts == ["thinking", "text", "tool_use", "tool_use"]
        assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
        json_pieces = [event["delta"]["partial_json"] for event in events if "partial_json" in event.get("delta", {})]
        assert json_pieces == ['{"a":', "1}", "{}"]
        assert (events[-2]["delta"]["stop_reason"], events[-2]["usage"]["output_tokens"]) == ("tool_use", 3)


async def test_tools_their_calls_and_results_are_chats() -> None:
    async with open_rig() as rig:
        messages = [
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "ok"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3"}]},
                    {"type": "text", "text": "and?"},
                ],
            },
        ]
        tools = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
        asked = ASK | {"messages": messages, "tools": tools, "tool_choice": {"type": "any"}}
        asking = rig.ask(PATH, asked)
        sent = await rig.sent()
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        assert sent["messages"] == [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "user", "content": "and?"},
        ]
        assert sent["tool_choice"] == "required"
        function = {"name": "f", "parameters": {"type": "object"}, "description": "d"}
        assert sent["tools"] == [{"type": "function", "function": function}]
        (await rig.exchange()).answer(200, whole({"content": None, "tool_calls": [call]}, "tool_calls"))
        body = (await asking).json
        assert body["content"] == [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]


@pytest.mark.parametrize(
    ("thinking", "options"),
    [
        ({"type": "enabled", "budget_tokens": 2}, {"enable_thinking": True, "thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False, "thinking": False}),
        ({"type": "adaptive"}, None),
        (None, None),
    ],
)
async def test_thinking_is_switched_in_the_template(thinking: object, options: object) -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, ASK | {"thinking": thinking})
        assert (await rig.sent()).get("chat_template_kwargs") == options
        (await rig.exchange()).answer(200, whole({"content": "x", "reasoning_content": "hm"}))
        assert (await asking).json["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}


async def test_the_clients_own_template_options_win_over_thinking() -> None:
    async with open_rig() as rig:
        own = {"enable_thinking": True, "x": 1}
        asking = rig.ask(PATH, ASK | {"thinking": {"type": "disabled"}, "chat_template_kwargs": own})
        assert (await rig.sent())["chat_template_kwargs"] == {"enable_thinking": True, "thinking": False, "x": 1}
        (await rig.exchange()).answer(200, whole({"content": "x"}))
        await asking


@pytest.mark.parametrize("is_stream", [True, False])
async def test_thoughts_that_are_to_be_omitted_are_told_as_empty_blocks(is_stream: bool) -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, ASK | {"stream": is_stream, "thinking": {"type": "adaptive", "display": "omitted"}})
        exchange = await rig.exchange()
        if is_stream:
            exchange.head()
            exchange.send(stream({"reasoning_content": "secret"}, {"content": "x"}))
            exchange.end()
        else:
            exchange.answer(200, whole({"content": "x", "reasoning_content": "secret"}))
        answer = await asking
        assert b"secret" not in answer.body
        assert b'"thinking","thinking":""' in answer.body


async def test_tokens_are_counted_without_a_replica() -> None:
    async with open_rig() as rig:
        answer = await rig.fetch("POST", f"{PATH}/count_tokens", {"model": "m", "messages": ASK["messages"]})
        assert (answer.status, answer.json) == (200, {"input_tokens": 1})
        assert rig.upstream.exchanges == []


async def test_a_stream_that_is_cut_ends_with_an_error_event() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, ASK | {"stream": True})
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(b'data: {"choices":[{"delta":{"content":"half"}}]}\n\n')
        await asyncio.sleep(0)
        exchange.fail(ConnectionCut("cut"))
        events = (await asking).events
        assert events[-1] == {"type": "error", "error": {"type": "api_error", "message": "cut"}}
        assert all(event["type"] != "message_stop" for event in events)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (429, "rate_limit_error"), (500, "api_error")],
)
async def test_errors_have_anthropics_shape(status: int, kind: str) -> None:
    async with open_rig(max_attempts=1) as rig:
        asking = rig.ask(PATH, ASK)
        (await rig.exchange()).answer(status, json.dumps({"error": {"message": "no"}}).encode())
        answer = await asking
        assert (answer.status, answer.json) == (status, {"type": "error", "error": {"type": kind, "message": "no"}})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].source",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9999}}, "thinking.budget_tokens"),
        ({"thinking": "enabled"}, "thinking"),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "some"}}, "tool_choice.type"),
    ],
)
async def test_a_wrong_field_is_named(fields: dict[str, object], named: str) -> None:
    async with open_rig() as rig:
        answer = await rig.fetch("POST", PATH, {k: v for k, v in (ASK | fields).items() if v is not None})
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
        assert f"`{named}`" in answer.json["error"]["message"]


def test_images_are_urls() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AA"}
    content = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
    _, chat = messages_ask.decode(json.dumps(ASK | {"messages": [{"role": "user", "content": content}]}).encode())
    assert json.loads(chat)["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,AA"
