"""The example as a process of its own, asked over gRPC as a router would ask it."""

from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pointsman.v1 import common_pb2, engine_pb2
from pointsman.v1.engine_pb2_grpc import EngineStub
from tests.deploy.examples.process import serving

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VOCABULARY = {f"w{number}": number for number in range(60)}
ROOM = 64


def write_model(folder: Path) -> Any:
    transformers: Any = import_module("transformers")
    import_module("torch").manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    limits = {"vocab_size": len(VOCABULARY), "max_position_embeddings": ROOM, "eos_token_id": None}
    config = transformers.LlamaConfig(**sizes, **limits, bos_token_id=None, initializer_range=0.3)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel(VOCABULARY, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w59").save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    return write_model(folder), folder


@pytest.fixture
async def stub(model: tuple[Any, Path]) -> AsyncIterator[EngineStub]:
    async with serving("deploy/examples/transformers_engine.py", str(model[1])) as stub:
        yield stub


async def test_it_says_what_transformers_says_token_by_token_and_goes_on_after_a_cancel(
    stub: EngineStub, model: tuple[Any, Path]
) -> None:
    info = await stub.Info(engine_pb2.InfoRequest(), timeout=60)
    assert (info.model, info.max_model_len, info.vocab_size) == ("tiny-llama", ROOM, len(VOCABULARY))
    greedy = common_pb2.Sampling(max_tokens=10, temperature=0, ignore_eos=True)
    torch: Any = import_module("torch")
    ids = torch.tensor([[5, 6, 7]])
    expected = model[0].generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)[0, 3:]

    left = stub.Generate(engine_pb2.GenerateRequest(request_id="left", token_ids=[5], sampling=greedy), timeout=60)
    await left.read()
    left.cancel()

    for prompt in ({"token_ids": [5, 6, 7]}, {"text": "w5 w6 w7"}):
        asked = engine_pb2.GenerateRequest(request_id="r", sampling=greedy, **prompt)
        events = [event async for event in stub.Generate(asked, timeout=60)]
        assert [token for event in events for token in event.token_ids] == expected.tolist()
        assert "".join(event.text for event in events).split() == [f"w{token}" for token in expected.tolist()]
        assert events[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert (events[-1].usage.prompt_tokens, events[-1].usage.output_tokens) == (3, 10)

    stop = common_pb2.Sampling(max_tokens=10, temperature=0, ignore_eos=True, stop_token_ids=[int(expected[3])])
    asked = engine_pb2.GenerateRequest(request_id="r", token_ids=[5, 6, 7], sampling=stop)
    events = [event async for event in stub.Generate(asked, timeout=60)]
    assert events[-1].finish_reason == common_pb2.FINISH_REASON_STOP
    assert events[-1].usage.output_tokens <= 4

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"sampling": {"seed": 1, "stop": ["x"]}}, "not supported: seed, stop"),
        ({"adapter": "blue"}, "not supported: adapter"),
        ({"sampling": {"max_tokens": ROOM}}, "1 tokens and 64 more in a context of 64"),
    ]
    for fields, complaint in wrong:
        refused = stub.Generate(engine_pb2.GenerateRequest(request_id="r", token_ids=[5], **fields), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError, match=complaint) as caught:
            await refused.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
