"""What a client of the gRPC port asks for reaches the engine, field for field."""

import json

from pointsman.v1.common_pb2 import Sampling
from router.transports.grpc import asks
from tests.router.transports.grpc.rig import chat


def test_every_field_of_sampling_is_passed_on_and_none_that_is_not_set() -> None:
    asked = Sampling(
        max_tokens=5,
        min_tokens=2,
        temperature=0.7,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        seed=11,
        stop=["a"],
        stop_token_ids=[7],
        ignore_eos=True,
        frequency_penalty=0.3,
        presence_penalty=-0.2,
        repetition_penalty=1.1,
        logit_bias={9: -1.5},
    )
    assert {field.name for field, _ in asked.ListFields()} == set(Sampling.DESCRIPTOR.fields_by_name)
    body = json.loads(asks.chat_body(chat(sampling=asked), is_stream=False))
    numbers = {"max_tokens": 5, "min_tokens": 2, "top_k": 4, "seed": 11, "temperature": 0.7, "top_p": 0.9, "min_p": 0.1}
    penalties = {"frequency_penalty": 0.3, "presence_penalty": -0.2, "repetition_penalty": 1.1}
    stops = {"stop": ["a"], "stop_token_ids": [7], "ignore_eos": True, "logit_bias": {"9": -1.5}}
    assert {name: body[name] for name in Sampling.DESCRIPTOR.fields_by_name} == {**numbers, **penalties, **stops}
    assert asks.sampling(Sampling()) == {}
