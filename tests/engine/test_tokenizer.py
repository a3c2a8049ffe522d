import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from engine.fetch import fetch
from engine.model.fields import ModelError
from engine.tokenizer import IncrementalDecoder, PromptError, Tokenizer
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA, TOKENS

TEXTS = [
    "",
    "Hello, world!  Two  spaces\n\n\tand a tab ",
    "def f(x: int) -> int:\n    return x ** 2 + 12345\n",
    "2024-01-31 3.14159 1,000,000 ½ Ⅷ ٣",
    "😀👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈 café naïve",
    "今天天气很好。你好,世界",
    "العربية עברית हिन्दी",
    "I'm you've we'LL don't",
]


@pytest.fixture
def tiny(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(write_gguf(tmp_path / "tiny.gguf", METADATA, {}))


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return Tokenizer.load(fetch("smollm2-135m-instruct"))


def streamed(decoder: IncrementalDecoder, token_ids: Iterable[int]) -> list[str]:
    return [*map(decoder.push, token_ids), decoder.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_round_trip_whole_and_streamed(tiny: Tokenizer, text: str) -> None:
    token_ids = tiny.encode(text)
    assert tiny.decode(token_ids) == text
    assert "".join(streamed(tiny.decoder(), token_ids)) == text


def test_a_chat_is_rendered_and_encoded_with_its_special_tokens(tiny: Tokenizer) -> None:
    text = tiny.render_chat([{"role": "user", "content": "hello"}])
    assert text == ("<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    token_ids = tiny.encode_chat([{"role": "user", "content": "hello"}])
    assert [TOKENS[i] for i in token_ids if i < 3] == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"]
    assert tiny.decode(token_ids) == "system\nBe kind\nuser\nhello\nassistant\n"
    assert tiny.encode_chat([{"role": "system", "content": ""}], add_generation_prompt=False) == tiny.encode(
        "<|im_start|>system\n<|im_end|>\n"
    )


def test_a_chat_never_gets_a_second_bos(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", METADATA | {"tokenizer.ggml.add_bos_token": True}, {})
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.encode_chat([{"role": "system", "content": ""}])[:2] != [1, 1]


def test_tools_and_options_reach_the_template_but_cannot_replace_the_messages(tmp_path: Path) -> None:
    template = "{{ messages | length }} {{ tools | tojson }} {{ mood }} {{ eos_token }} {{ add_generation_prompt }}"
    path = write_gguf(tmp_path / "m.gguf", METADATA | {"tokenizer.chat_template": template}, {})
    rendered = Tokenizer.load(path).render_chat(
        [{"role": "user", "content": ""}], tools=[{"type": "function"}], mood="calm", messages=[]
    )
    assert rendered == '1 [{"type": "function"}] calm <|im_end|> True'


def test_prompts_that_cannot_be_are_the_client_s_error(tmp_path: Path, tiny: Tokenizer) -> None:
    with pytest.raises(PromptError, match="lone surrogate"):
        tiny.encode("a\ud800")
    with pytest.raises(PromptError, match="lone surrogate"):
        tiny.encode_chat([{"role": "user", "content": "\udfff"}])
    with pytest.raises(PromptError, match="refuses the messages"):
        tiny.render_chat([{"content": "no role"}])
    mute = {key: value for key, value in METADATA.items() if key != "tokenizer.chat_template"}
    with pytest.raises(PromptError, match="no chat template"):
        Tokenizer.load(write_gguf(tmp_path / "m.gguf", mute, {})).render_chat([{"role": "user", "content": "a"}])


def test_streamed_text_never_has_half_a_character(tiny: Tokenizer) -> None:
    texts = streamed(tiny.decoder(), tiny.encode("é😀中"))
    assert [text for text in texts if text] == ["é", "😀", "中"]


def test_a_character_that_never_ends_comes_out_at_the_flush(tiny: Tokenizer) -> None:
    decoder = tiny.decoder()
    assert [decoder.push(token_id) for token_id in tiny.encode("😀")[:3]] == ["", "", ""]
    assert repr(decoder) == "<IncrementalDecoder 3 bytes held>"
    assert decoder.flush() == "\ufffd"
    assert repr(decoder) == "<IncrementalDecoder 0 bytes held>"


def test_streamed_text_skips_special_tokens_and_unknown_ids(tiny: Tokenizer) -> None:
    token_ids = [1, *tiny.encode("hello"), 2, TOKENS.index("<tool>"), len(TOKENS) + 7]
    assert "".join(streamed(tiny.decoder(), token_ids)) == "hello<tool>"


def test_random_ids_stream_to_what_they_decode_to(tiny: Tokenizer) -> None:
    random = Random(11)
    for _ in range(300):
        token_ids = [random.randrange(len(TOKENS)) for _ in range(random.randint(0, 12))]
        assert "".join(streamed(tiny.decoder(), token_ids)) == tiny.decode(token_ids)


def test_generations_share_nothing(tiny: Tokenizer) -> None:
    one, other = tiny.decoder(), tiny.decoder()
    first, *rest = tiny.encode("é")
    assert one.push(first) == ""
    assert "".join(streamed(other, tiny.encode("a"))) == "a"
    assert "".join(map(one.push, rest)) == "é"


def test_what_is_served_rebuilds_the_same_tokenizer(tiny: Tokenizer, tmp_path: Path) -> None:
    served = json.loads(json.dumps(tiny.served()))
    rebuilt = tokenizers.Tokenizer.from_str(json.dumps(served["tokenizer"]))
    for text in TEXTS:
        assert rebuilt.encode(text).ids == tiny.encode(text)
    assert (served["bos_token"], served["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(served["tokenizer"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(served | {"tokenizer": None}))
    (tmp_path / "model.safetensors").touch()
    again = Tokenizer.load(tmp_path)
    assert again.served() == served
    assert again.eos_token_ids == (2,)
    assert again.encode_chat([{"role": "user", "content": "hello"}]) == tiny.encode_chat(
        [{"role": "user", "content": "hello"}]
    )
    assert repr(again) == "<Tokenizer 268 tokens chat template>"


def write_sentencepiece_folder(folder: Path, decoder: decoders.Decoder) -> Path:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    model = models.BPE(
        {token: i for i, token in enumerate(tokens)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").touch()
    return folder


def test_sentencepiece_tokens_stream_byte_by_byte(tmp_path: Path) -> None:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer = Tokenizer.load(write_sentencepiece_folder(tmp_path, decoders.Sequence(steps)))
    token_ids = tokenizer.encode("ab é😀 a")
    assert tokenizer.decode(token_ids) == "ab é😀 a"
    # A generation goes on from a prompt, so the space before its first word belongs to it.
    assert [text for text in streamed(tokenizer.decoder(), token_ids) if text] == [" a", "b", " ", "é", "😀", " a"]


def test_a_decoder_that_cannot_be_streamed_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_sentencepiece_folder(tmp_path, decoders.WordPiece())
    with pytest.raises(ModelError, match="decoder WordPiece is not supported"):
        Tokenizer.load(folder)


@pytest.mark.slow
def test_the_real_chat_prompt_is_as_long_as_vllm_counts_it(real: Tokenizer) -> None:
    token_ids = real.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    assert len(token_ids) == 37
    assert token_ids[:2] == [1, 9690]
    assert real.eos_token_ids == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_the_real_tokenizer_s_round_trip(real: Tokenizer, text: str) -> None:
    token_ids = real.encode(text)
    assert real.decode(token_ids) == text
    assert "".join(streamed(real.decoder(), token_ids)) == text
    served = real.served()["tokenizer"]
    assert tokenizers.Tokenizer.from_str(json.dumps(served)).encode(text).ids == token_ids


@pytest.mark.slow
def test_the_real_tokenizer_gives_hugging_face_s_ids(real: Tokenizer) -> None:
    assert real.encode("Hello, world!") == [19556, 28, 905, 17]
    assert real.encode("x ** 2 + 12345") == [104, 1903, 216, 34, 1232, 216, 33, 34, 35, 36, 37]
    assert real.encode("😀 hi 中文字") == [10813, 242, 218, 15876, 216, 28589, 29184, 36518]
    assert real.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (3, r"messages\[1\]\.content must be a string or a list of text parts"),
        ([{"type": "image_url"}], r"messages\[1\]\.content\[0\] is of type 'image_url'; .* only text parts"),
        ([{"type": "text", "text": "a"}, 3], r"messages\[1\]\.content\[1\] is of type 'int'"),
        ([{"type": "text"}], r"messages\[1\]\.content\[0\] is of type 'text'"),
    ],
)
def test_content_that_is_not_text_is_refused_by_its_place(tiny: Tokenizer, content: object, complaint: str) -> None:
    with pytest.raises(PromptError, match=complaint):
        tiny.render_chat([{"role": "user", "content": ""}, {"role": "user", "content": content}])


def test_parts_of_text_become_lines(tiny: Tokenizer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert "<|im_start|>user\na\nb<|im_end|>" in tiny.render_chat([{"role": "user", "content": parts}])


def test_what_the_template_refuses_is_the_clients_prompt_error(tmp_path: Path) -> None:
    metadata = METADATA | {"tokenizer.chat_template": "{{ raise_exception('roles must alternate') }}"}
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "strict.gguf", metadata, {}))
    with pytest.raises(PromptError, match="roles must alternate"):
        tokenizer.render_chat([{"role": "user", "content": "hello"}])


def test_a_template_that_does_not_parse_is_a_fault_of_the_model(tmp_path: Path) -> None:
    metadata = METADATA | {"tokenizer.chat_template": "a\n{% if %}"}
    with pytest.raises(ModelError, match=r"chat template does not parse: line 2: "):
        Tokenizer.load(write_gguf(tmp_path / "broken.gguf", metadata, {}))


def test_special_tokens_are_shown_to_whoever_asks_and_have_bytes(tiny: Tokenizer) -> None:
    ends = [TOKENS.index("<|im_end|>"), TOKENS.index("a")]
    assert "".join(streamed(tiny.decoder(), ends)) == "a"
    assert "".join(streamed(tiny.decoder(skip_special_tokens=False), ends)) == "<|im_end|>a"
    assert tiny.token_bytes(ends[0]) == b"<|im_end|>"


@pytest.mark.slow
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_the_real_template_is_rendered_as_transformers_renders_it(real: Tokenizer, add_generation_prompt: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    turns = [
        {"role": "system", "content": "Be <brief> & kind."},
        {"role": "user", "content": " Hello!\n"},
        {"role": "assistant", "content": "Hi é"},
        {"role": "user", "content": "Bye"},
    ]
    served = real.served()
    special = {name: served[name] for name in ("bos_token", "eos_token")}
    for messages in (turns, turns[1:], turns[1:2]):
        variables = {"add_generation_prompt": add_generation_prompt, **special}
        texts = render_jinja_template([messages], chat_template=served["chat_template"], **variables)[0]
        assert real.render_chat(messages, add_generation_prompt=add_generation_prompt) == texts[0]
