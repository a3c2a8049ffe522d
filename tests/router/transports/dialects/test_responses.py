"""OpenAI's Responses API over chat engines."""

import asyncio
import json

import pytest

from router.core import Outcome
from router.errors import ConnectionCut
from router.transports.dialects import responses_ask
from tests.fakes import until
from tests.router.transports.dialects.rig import calls, open_rig, stream, whole

PATH = "/v1/responses"


async def test_a_text_is_asked_and_answered() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, {"model": "m", "input": "hi", "instructions": "Be brief.", "max_output_tokens": 5})
        sent = await rig.sent()
        assert sent == {
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "max_tokens": 5,
        }
        (await rig.exchange()).answer(200, whole({"content": "yes"}))
        answer = await asking
        body = answer.json
        assert (answer.status, body["object"], body["status"], body["model"]) == (200, "response", "completed", "m-1")
        [item] = body["output"]
        assert (item["type"], item["role"], item["content"][0]["text"]) == ("message", "assistant", "yes")
        assert body["usage"]["input_tokens_details"] == {"cached_tokens": 8}
        assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"], body["usage"]["total_tokens"]) == (
            12,
            3,
            15,
        )
        assert answer.headers["x-pointsman-replica"] == (await rig.exchange()).attempt.replica.id


async def test_a_stream_is_told_in_events_in_order() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, {"model": "m", "input": "hi", "stream": True})
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(
            stream({"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"content": "He"}, {"content": "y"})
        )
        exchange.end()
        events = (await asking).events
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
        final = events[-1]["response"]
        assert final["output"][1]["content"][0]["text"] == "Hey"
        assert events[2]["item"]["content"] == []
        assert final["id"] == events[0]["response"]["id"]


async def test_calls_of_tools_come_in_pieces_and_their_results_go_back() -> None:
    async with open_rig() as rig:
        function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
        tool = {"type": "function", **function}
        asking = rig.ask(PATH, {"model": "m", "input": "hi", "tools": [tool], "tool_choice": "auto", "stream": True})
        sent = await rig.sent()
        assert sent["tools"] == [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
        ]
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(
            stream(*calls((0, "c1", "f", ""), (0, None, None, '{"a":'), (1, "c2", "g", "{}"), (0, None, None, "1}")))
        )
        exchange.end()
        events = (await asking).events
        done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
        assert [event["arguments"] for event in done] == ['{"a":1}', "{}"]
        first, second = events[-1]["response"]["output"]
        assert (first["call_id"], first["name"], second["call_id"]) == ("c1", "f", "c2")
        follow = {
            "model": "m",
            "previous_response_id": events[-1]["response"]["id"],
            "input": [{"type": "function_call_output", "call_id": "c1", "output": "3"}],
        }
        again = rig.ask(PATH, follow)
        assert [message["role"] for message in (await rig.sent(1))["messages"]] == ["user", "assistant", "tool"]
        (await rig.exchange(1)).answer(200, whole({"content": "3"}))
        assert (await again).json["previous_response_id"] == follow["previous_response_id"]


async def test_a_response_can_be_followed_read_and_deleted_by_its_owner_alone() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, {"model": "m", "input": "one", "instructions": "only now"}, Authorization="Bearer a")
        (await rig.exchange()).answer(200, whole({"content": "two"}))
        id = (await asking).json["id"]
        follow = {"model": "m", "input": "three", "previous_response_id": id}
        stranger = await rig.fetch("POST", PATH, follow, Authorization="Bearer b")
        assert (stranger.status, stranger.json["error"]["code"]) == (400, "previous_response_not_found")
        asking = rig.ask(PATH, follow, Authorization="Bearer a")
        assert [message["content"] for message in (await rig.sent(1))["messages"]] == ["one", "two", "three"]
        (await rig.exchange(1)).answer(200, whole({"content": "four"}))
        await asking
        assert (await rig.fetch("GET", f"{PATH}/{id}", Authorization="Bearer a")).json["id"] == id
        items = (await rig.fetch("GET", f"{PATH}/{id}/input_items", Authorization="Bearer a")).json["data"]
        assert items[0]["content"][0]["text"] == "one"
        assert (await rig.fetch("GET", f"{PATH}/{id}", Authorization="Bearer b")).status == 404
        assert (await rig.fetch("DELETE", f"{PATH}/{id}", Authorization="Bearer a")).json["deleted"] is True
        assert (await rig.fetch("GET", f"{PATH}/{id}", Authorization="Bearer a")).status == 404


async def test_what_is_not_to_be_stored_is_not() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, {"model": "m", "input": "hi", "store": False})
        (await rig.exchange()).answer(200, whole({"content": "x"}))
        body = (await asking).json
        assert body["store"] is False
        assert (await rig.fetch("GET", f"{PATH}/{body['id']}")).status == 404


async def test_one_in_the_background_is_answered_at_once_and_polled() -> None:
    async with open_rig() as rig:
        queued = (await rig.fetch("POST", PATH, {"model": "m", "input": "hi", "background": True})).json
        assert (queued["status"], queued["background"]) == ("queued", True)
        exchange = await rig.exchange()
        assert (await rig.fetch("GET", f"{PATH}/{queued['id']}")).json["status"] == "queued"
        exchange.answer(200, whole({"content": "x"}))
        await until(lambda: not rig.responses.runs.held)
        done = (await rig.fetch("GET", f"{PATH}/{queued['id']}")).json
        assert (done["status"], done["output"][0]["content"][0]["text"]) == ("completed", "x")


async def test_one_in_the_background_is_cancelled() -> None:
    async with open_rig() as rig:
        id = (await rig.fetch("POST", PATH, {"model": "m", "input": "hi", "background": True})).json["id"]
        exchange = await rig.exchange()
        assert (await rig.fetch("POST", f"{PATH}/{id}/cancel")).json["status"] == "cancelled"
        await until(lambda: exchange.is_aborted)
        assert (await rig.fetch("GET", f"{PATH}/{id}")).json["status"] == "cancelled"


async def test_a_stream_that_is_cut_ends_as_failed() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, {"model": "m", "input": "hi", "stream": True})
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(b'data: {"choices":[{"delta":{"content":"half"}}]}\n\n')
        await asyncio.sleep(0)
        exchange.fail(ConnectionCut("cut"))
        last = (await asking).events[-1]
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "replica_connection_lost")
        assert last["response"]["output"][0]["content"][0]["text"] == "half"


async def test_an_answer_that_met_its_limit_is_incomplete() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, {"model": "m", "input": "hi"})
        (await rig.exchange()).answer(200, whole({"content": "x"}, "length"))
        body = (await asking).json
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


async def test_a_replicas_refusal_keeps_its_status_and_words() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, {"model": "m", "input": "hi", "stream": True})
        words = {"message": "no", "type": "invalid_request_error", "param": "temperature", "code": None}
        (await rig.exchange()).answer(400, json.dumps({"error": words}).encode())
        answer = await asking
        assert (answer.status, answer.json["error"]) == (400, words)


async def test_a_client_that_leaves_lets_go_of_the_replica() -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, {"model": "m", "input": "hi"})
        exchange = await rig.exchange()
        asking.cancel()
        await until(lambda: exchange.is_aborted)
        await until(lambda: not rig.station.left_over)
        assert rig.station.outcomes == [Outcome.CLIENT_GONE]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"background": True, "store": False}, "store"),
        ({"previous_response_id": "none"}, "previous_response_id"),
        ({"max_output_tokens": "x"}, "max_output_tokens"),
    ],
)
async def test_a_wrong_field_is_named(fields: dict[str, object], param: str) -> None:
    async with open_rig() as rig:
        given = {"model": "m", "input": "hi"} | fields
        answer = await rig.fetch("POST", PATH, {name: value for name, value in given.items() if value is not None})
        assert answer.json["error"]["param"] == param
        assert answer.status in (400, 404)
        assert rig.refused == [answer.status]
        assert rig.upstream.exchanges == []


async def test_an_unknown_model_is_a_404() -> None:
    async with open_rig() as rig:
        answer = await rig.fetch("POST", PATH, {"model": "other", "input": "hi"})
        assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")


def test_parts_of_text_are_one_text_and_images_stay_parts() -> None:
    text = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    messages = responses_ask.messages_of(
        [{"role": "developer", "content": text}, {"role": "user", "content": [*text, image]}]
    )
    assert messages[0] == {"role": "system", "content": "ab"}
    assert messages[1]["content"][2] == {"type": "image_url", "image_url": {"url": image["image_url"], "detail": "low"}}


def test_a_schema_is_asked_for_in_chats_form() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    asked = responses_ask.decode(json.dumps({"model": "m", "input": "x", "text": {"format": schema}}).encode())
    form = json.loads(asked.chat_body((), is_stream=False))["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
