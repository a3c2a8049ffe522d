"""From a body to calls and back to OpenAI's bytes, for both contracts; vLLM's messages are recorded from 0.32."""

import json
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from pointsman.v1 import common_pb2, engine_pb2
from pointsman.v1 import vllm_engine_pb2 as vllm
from router.errors import BadAnswer, ConnectionCut, ContextTooLong, InvalidRequest, UpstreamStatus
from router.upstream.grpc.answering import Generation, Plan
from router.upstream.grpc.answers import DONE
from tests.router.upstream.grpc.plans import ByteIds, attempt, planner

COMPLETIONS, EMBEDDINGS = "/v1/completions", "/v1/embeddings"
STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH


def planned(**fields: Any) -> Plan:
    plan = planner().now(attempt(**fields))
    assert plan is not None
    return plan


def asked(plan: Plan, number: int = 0) -> engine_pb2.GenerateRequest:
    assert plan.calls[number].method == "/pointsman.v1.Engine/Generate"
    return engine_pb2.GenerateRequest.FromString(plan.calls[number].message)


def asked_of_vllm(plan: Plan, number: int = 0) -> vllm.GenerateRequest:
    assert plan.calls[number].method == "/vllm.grpc.engine.VllmEngine/Generate"
    return vllm.GenerateRequest.FromString(plan.calls[number].message)


def events(plan: Plan, *messages: Any) -> list[Any]:
    """What comes of one call's messages, as a client reads it; whole events only."""
    sent = b"".join(plan.answering.take(0, message.SerializeToString()) for message in messages) + plan.answering.end()
    assert sent.endswith(DONE)
    return [json.loads(each.removeprefix(b"data: ")) for each in sent.removesuffix(DONE).split(b"\n\n") if each]


def test_a_chat_goes_in_tokens_with_all_that_it_asks_for() -> None:
    plan = planned(
        model="lora",
        max_tokens=9,
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        min_tokens=2,
        frequency_penalty=0.5,
        presence_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"5": -2},
        seed=-1,
        stop="x",
        stop_token_ids=[4],
        ignore_eos=True,
        cache_salt="s",
        priority=3,
    )
    [call] = plan.calls
    found = asked(plan)
    assert call.method == "/pointsman.v1.Engine/Generate"
    assert list(found.token_ids) == list("hé".encode())
    assert (found.adapter, found.cache_salt, found.priority) == ("lora", "s", 3)
    sampling = found.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (9, 0.5, 0.25, 7)
    assert (sampling.min_p, sampling.min_tokens, sampling.seed) == (0.125, 2, 2**64 - 1)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.5, -1.0, 1.5)
    assert (dict(sampling.logit_bias), list(sampling.stop)) == ({5: -2.0}, ["x"])
    assert (list(sampling.stop_token_ids), sampling.ignore_eos) == ([4], True)


def test_what_is_not_asked_for_is_not_said() -> None:
    found = asked(planned())
    assert found.sampling == common_pb2.Sampling()
    assert [field.name for field, _ in found.ListFields()] == ["request_id", "token_ids", "sampling"]


def test_requests_of_one_id_are_told_apart() -> None:
    plans = planner()
    ids = set()
    for _ in range(3):
        plan = plans.now(attempt())
        assert plan is not None
        ids.add(asked(plan).request_id)
    assert len(ids) == 3
    assert all(id.startswith("r-") for id in ids)


def test_each_prompt_and_sample_is_a_call() -> None:
    plan = planned(path=COMPLETIONS, prompt=["a", [7, 8]], n=2, seed=5)
    prompts = [list(asked(plan, number).token_ids) for number in range(4)]
    assert prompts == [[97], [97], [7, 8], [7, 8]] or prompts[2:] == [[7, 8], [7, 8]]
    assert [asked(plan, number).sampling.seed for number in range(4)] == [5, 6, 5, 6]


def test_a_text_without_a_tokenizer_goes_as_text_once_nobody_loads_one() -> None:
    assert planner(is_loaded=False).now(attempt(path=COMPLETIONS, prompt="a")) is None


async def test_a_text_whose_tokenizer_never_came_goes_as_text() -> None:
    plan = await planner(is_loaded=False).soon(attempt(path=COMPLETIONS, prompt="a", add_special_tokens=False))
    assert asked(plan).text == "a"


async def test_a_chat_without_a_tokenizer_is_refused_for_now() -> None:
    with pytest.raises(UpstreamStatus) as caught:
        await planner(is_loaded=False).soon(attempt())
    assert (caught.value.status, caught.value.retryable, caught.value.blames_replica) == (503, True, False)
    assert b"tokenizer=PATH" in caught.value.body


async def test_an_image_is_refused_by_name() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    with pytest.raises(UpstreamStatus) as caught:
        await planner().soon(attempt(messages=messages))
    assert json.loads(caught.value.body)["error"]["param"] == "messages"


def test_long_prompts_are_not_read_on_the_event_loop() -> None:
    assert planner().now(attempt(messages=[{"role": "user", "content": "x" * 40_000}])) is None


def test_how_a_completion_is_tokenized_is_passed_on() -> None:
    plans = planner()
    plans.now(attempt(path=COMPLETIONS, prompt="a", add_special_tokens=False))
    assert isinstance(plans.ids, ByteIds)
    assert plans.ids.asked == [("a", {"add_special_tokens": False})]


@pytest.mark.parametrize("name", ["response_format", "structured_outputs"])
def test_the_bundled_contract_has_no_structure(name: str) -> None:
    value = {"type": "json_object"} if name == "response_format" else {"regex": "a"}
    with pytest.raises(UpstreamStatus) as caught:
        planned(**{name: value})
    assert json.loads(caught.value.body)["error"]["param"] == name


def test_too_many_choices_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        planned(path=COMPLETIONS, prompt=["a"] * 200, n=2)


def test_a_stream_is_openais() -> None:
    plan = planned(stream=True, stream_options={"include_usage": True})
    first, second, third, last = events(
        plan,
        engine_pb2.GenerateEvent(token_ids=[1], usage={"prompt_tokens": 3, "cached_tokens": 2, "output_tokens": 1}),
        engine_pb2.GenerateEvent(token_ids=[2], text="hé"),
        engine_pb2.GenerateEvent(
            text="!", finish_reason=STOP, stop="x", usage={"prompt_tokens": 3, "cached_tokens": 2, "output_tokens": 3}
        ),
    )
    head = {"id": "chatcmpl-r", "object": "chat.completion.chunk", "created": 1700, "model": "m"}
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert first == {**head, "choices": [role]}
    assert second["choices"][0] == {**role, "delta": {"content": "hé"}}
    assert third["choices"][0] == {**role, "delta": {"content": "!"}, "finish_reason": "stop", "stop_reason": "x"}
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert last == {**head, "choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 2}}}


def test_a_stream_of_completions_has_text_and_no_role() -> None:
    plan = planned(path=COMPLETIONS, prompt="a", stream=True)
    first, last = events(
        plan, engine_pb2.GenerateEvent(text="b"), engine_pb2.GenerateEvent(finish_reason=LENGTH, stop_token_id=7)
    )
    assert (first["object"], first["choices"][0]["text"]) == ("text_completion", "b")
    ending = {"finish_reason": "length", "stop_reason": 7}
    assert last["choices"][0] == {"index": 0, "text": "", "logprobs": None, **ending}


def test_a_whole_answer_is_openais() -> None:
    plan = planned(n=2)
    take = plan.answering.take
    usage = {"prompt_tokens": 3, "cached_tokens": 1, "output_tokens": 2}
    for index, text in ((1, "b"), (0, "a")):
        assert take(index, engine_pb2.GenerateEvent(text=text).SerializeToString()) == b""
        event = engine_pb2.GenerateEvent(text="!", finish_reason=STOP, usage=usage)
        assert take(index, event.SerializeToString()) == b""
    body = json.loads(plan.answering.end())
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a!", "b!"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "stop"]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 4), "a prompt counts once"


def test_a_stream_without_a_finish_reason_is_cut() -> None:
    plan = planned(stream=True)
    plan.answering.take(0, engine_pb2.GenerateEvent(text="a").SerializeToString())
    with pytest.raises(ConnectionCut):
        plan.answering.end()


def test_what_comes_behind_the_finish_reason_is_not_told() -> None:
    plan = planned(stream=True)
    plan.answering.take(0, engine_pb2.GenerateEvent(finish_reason=STOP).SerializeToString())
    assert plan.answering.take(0, engine_pb2.GenerateEvent(text="a").SerializeToString()) == b""


@pytest.mark.parametrize("engine", [None, "vllm"])
def test_a_message_that_is_none_is_the_replicas_fault(engine: str | None) -> None:
    with pytest.raises(BadAnswer):
        planned(engine=engine, stream=True).answering.take(0, b"\xff\xff\xff")


@pytest.mark.parametrize("is_base64", [False, True])
def test_embeddings_go_in_one_call_of_texts(is_base64: bool) -> None:
    plan = planned(path=EMBEDDINGS, input=["a", "b"], encoding_format="base64" if is_base64 else "float")
    [call] = plan.calls
    assert call.method == "/pointsman.v1.Engine/Embed"
    assert list(engine_pb2.VectorsRequest.FromString(call.message).texts) == ["a", "b"]
    reply = engine_pb2.VectorsReply(vectors=[{"values": [1.0, 0.5]}, {"values": [2.0]}], usage={"prompt_tokens": 5})
    plan.answering.take(0, reply.SerializeToString())
    body = json.loads(plan.answering.end())
    assert [each["index"] for each in body["data"]] == [0, 1]
    assert body["data"][0]["embedding"] == ("AACAPwAAAD8=" if is_base64 else [1.0, 0.5])
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


def test_a_text_without_a_vector_is_the_replicas_fault() -> None:
    plan = planned(path=EMBEDDINGS, input=["a", "b"])
    plan.answering.take(0, engine_pb2.VectorsReply(vectors=[{"values": [1.0]}]).SerializeToString())
    with pytest.raises(BadAnswer):
        plan.answering.end()


def test_tokens_are_no_texts_to_the_bundled_engine() -> None:
    with pytest.raises(UpstreamStatus) as caught:
        planned(path=EMBEDDINGS, input=[1, 2])
    assert json.loads(caught.value.body)["error"]["param"] == "input"


# vLLM's contract


def recorded(*messages: str) -> Sequence[bytes]:
    return [bytes.fromhex(message) for message in messages]


def said(plan: Plan, messages: Sequence[bytes]) -> list[dict[str, Any]]:
    sent = b"".join(plan.answering.take(0, message) for message in messages) + plan.answering.end()
    found = [json.loads(each.removeprefix(b"data: ")) for each in sent.removesuffix(DONE).split(b"\n\n") if each]
    return [each["choices"][0] for each in found]


def test_vllm_is_sent_tokens_and_its_own_words() -> None:
    found = asked_of_vllm(
        planned(engine="vllm", stream=True, max_tokens=5, temperature=0, seed=2**40 + 3, top_k=-1, stop=["a"], n=2)
    )
    assert list(found.tokenized.input_ids) == list("hé".encode())
    params = found.sampling_params
    assert (params.max_tokens, params.HasField("temperature"), params.temperature, params.seed) == (5, True, 0.0, 3)
    assert (params.skip_special_tokens, params.top_k, list(params.stop), found.stream) == (True, 0, ["a"], True)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}},
            "json_schema",
            '{"type":"object"}',
        ),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"grammar": "g"}}, "grammar", "g"),
        ({"structured_outputs": {"json": {"a": 1}}}, "json_schema", '{"a":1}'),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", vllm.ChoiceConstraint(choices=["a"])),
    ],
)
def test_vllm_is_told_what_the_output_is_to_keep_to(fields: dict[str, Any], name: str, value: object) -> None:
    params = asked_of_vllm(planned(engine="vllm", **fields)).sampling_params
    assert params.WhichOneof("constraint") == name
    assert getattr(params, name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("cache_salt", "s"), ("priority", 1), ("model", "lora"), ("kv_transfer_params", {"do_remote_decode": True})],
)
def test_what_vllms_contract_lacks_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UpstreamStatus) as caught:
        planned(engine="vllm", **{name: value})
    assert json.loads(caught.value.body)["error"]["param"] == name


@pytest.mark.parametrize("engine", [None, "vllm"])
def test_what_the_context_does_not_hold_is_refused(engine: str | None) -> None:
    with pytest.raises(ContextTooLong) as caught:
        planned(engine=engine, max_tokens=998)
    assert caught.value.param == "messages"
    assert planned(engine=engine, max_tokens=997)
    with pytest.raises(ContextTooLong) as caught:
        planned(engine=engine, path=COMPLETIONS, prompt=[1] * 1000)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(("num_prompt_tokens", "most"), [(1, 16), (990, 10)])
def test_a_completion_has_openais_few_tokens_or_what_is_left(num_prompt_tokens: int, most: int) -> None:
    assert asked(planned(path=COMPLETIONS, prompt=[1] * num_prompt_tokens)).sampling.max_tokens == most


def test_characters_come_whole_however_tokens_cut_them() -> None:
    rainbow = "🌈".encode()
    plan = planned(engine="vllm", stream=True)
    chunks = [vllm.GenerateResponse(chunk={"token_ids": [byte], "prompt_tokens": 3}) for byte in rainbow + b"a"]
    last = vllm.GenerateResponse(complete={"output_ids": [97], "finish_reason": "length", "prompt_tokens": 3})
    choices = said(plan, [each.SerializeToString() for each in (*chunks, last)])
    assert [choice["delta"]["content"] for choice in choices] == ["", "🌈", "a", ""]
    assert choices[-1]["finish_reason"] == "length"


def test_a_character_that_is_never_finished_is_shown_as_such() -> None:
    plan = planned(engine="vllm", stream=True)
    messages = [
        vllm.GenerateResponse(chunk={"token_ids": "🌈".encode()[:2]}),
        vllm.GenerateResponse(complete={"output_ids": "🌈".encode()[1:2], "finish_reason": "length"}),
    ]
    choices = said(plan, [each.SerializeToString() for each in messages])
    assert choices[-1]["delta"]["content"] == "\N{REPLACEMENT CHARACTER}"


def test_a_recorded_stream_of_vllm_ends_with_the_stop_text_cut_off() -> None:
    """ "eight nine", of which the second token completed the stop text " nine"."""
    plan = planned(engine="vllm", stream=True, stop=[" nine"], stream_options={"include_usage": True})
    assert isinstance(plan.answering, Generation)
    messages = recorded(
        "0a080a02fb2210071801", "0a080a02a63a10071801", "12150a02a63a120473746f70180720015a05206e696e65"
    )
    first, second, last = (vllm.GenerateResponse.FromString(message) for message in messages)
    for message, text in ((first.chunk, b" eight"), (second.chunk, b" nine"), (last.complete, b" nine")):
        ids = message.token_ids if isinstance(message, vllm.GenerateStreamChunk) else message.output_ids
        ids[:] = text  # the tokens of our tokenizer
    sent = b"".join(plan.answering.take(0, each.SerializeToString()) for each in (first, second, last))
    found = [json.loads(each.removeprefix(b"data: ")) for each in sent.split(b"\n\n") if each]
    assert "".join(each["choices"][0]["delta"]["content"] for each in found) == " eight"
    ending = {"finish_reason": "stop", "stop_reason": " nine"}
    assert found[-1]["choices"][0] == {"index": 0, "delta": {"content": ""}, "logprobs": None, **ending}
    usage = json.loads(plan.answering.end().split(b"\n\n")[0].removeprefix(b"data: "))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, len(" eight nine"))


def test_a_recorded_whole_answer_of_vllm_is_one() -> None:
    plan = planned(engine="vllm", path=COMPLETIONS, prompt=[1, 2, 3])
    [message] = recorded("12140a06fb22a63abc1d12066c656e67746818072003")
    whole = vllm.GenerateResponse.FromString(message)
    assert list(whole.complete.output_ids) == [4475, 7462, 3772]
    whole.complete.output_ids[:] = b"abc"
    assert plan.answering.take(0, whole.SerializeToString()) == b""
    body = json.loads(plan.answering.end())
    assert body["choices"][0]["text"] == "abc"
    assert body["usage"]["completion_tokens"] == 3
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_failure_that_vllm_only_names_is_a_fault() -> None:
    message = vllm.GenerateResponse(complete={"finish_reason": "error"})
    with pytest.raises(BadAnswer):
        planned(engine="vllm", stream=True).answering.take(0, message.SerializeToString())


def test_each_text_to_embed_is_a_call_to_vllm() -> None:
    plan = planned(engine="vllm", path=EMBEDDINGS, input=["ab", "c"])
    found = [vllm.EmbedRequest.FromString(call.message) for call in plan.calls]
    assert [list(each.tokenized.input_ids) for each in found] == [[97, 98], [99]]
    for index in (1, 0):
        reply = vllm.EmbedResponse(embedding=[float(index)], prompt_tokens=index + 1)
        plan.answering.take(index, reply.SerializeToString())
    body = json.loads(plan.answering.end())
    assert [each["embedding"] for each in body["data"]] == [[0.0], [1.0]]
    assert body["usage"]["prompt_tokens"] == 3


def test_tokens_to_embed_go_to_vllm_as_they_are() -> None:
    [call] = planned(engine="vllm", path=EMBEDDINGS, input=[5, 6]).calls
    assert list(vllm.EmbedRequest.FromString(call.message).tokenized.input_ids) == list(array("I", [5, 6]))
