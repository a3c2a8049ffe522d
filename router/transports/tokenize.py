"""vLLM's `/tokenize` and `/detokenize`: their bodies, and their answers from a pool's own tokenizer. Knows JSON shapes;
knows no routes, and nothing of who is asked where no tokenizer is here."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from router.errors import InvalidRequest
from router.openai import decoded, template_options
from router.prefix.reading import Reading
from router.prefix.texts import ids_of_chat, ids_of_text, spelled, text_of

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Answer = Callable[[Reading, int | None], Mapping[str, object] | None]
"""Of a reading and the model's longest context in tokens; None where only an engine can answer."""


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Text as `prompt`, or a chat as `messages`; without a model, that of the only pool is meant."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[TokenId]
    model: str | None = None


def tokenize(body: bytes) -> tuple[str | None, Answer]:
    """The model that is meant, and how to answer. Raises InvalidRequest that names the field."""
    _, asked = decoded(body, TokenizeBody)
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest("Give either `prompt` or `messages`.", param="prompt")
    if asked.messages == []:
        raise InvalidRequest("`messages` must hold at least one message.", param="messages")

    def answer(reading: Reading, max_model_len: int | None) -> Mapping[str, object] | None:
        ids = _ids(reading, asked)
        if ids is None:
            return None
        texts = spelled(reading, ids) if asked.return_token_strs else None
        return {"count": len(ids), "max_model_len": max_model_len, "tokens": list(ids), "token_strs": texts}

    return asked.model, answer


def detokenize(body: bytes) -> tuple[str | None, Answer]:
    """As `tokenize`."""
    _, asked = decoded(body, DetokenizeBody)
    return asked.model, lambda reading, _: {"prompt": text_of(reading, asked.tokens)}


def _ids(reading: Reading, asked: TokenizeBody) -> Any:
    if asked.messages is None:
        return ids_of_text(reading, asked.prompt or "", with_special=asked.add_special_tokens is not False)
    if asked.chat_template is not None:
        return None
    options = template_options(
        asked.chat_template_kwargs,
        tools=asked.tools,
        documents=asked.documents,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
    )
    return ids_of_chat(reading, asked.messages, options, with_special=bool(asked.add_special_tokens))
