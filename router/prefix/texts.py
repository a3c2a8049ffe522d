"""Text to token ids and back for those who ask for just that, as a pool's own prompts are read. Knows one reading;
knows no requests, pools or HTTP. For a thread: a long text takes a while."""

from array import array
from collections.abc import Mapping, Sequence

from router.errors import InvalidRequest
from router.prefix.messages import Messages, plain_messages
from router.prefix.reading import Reading


def ids_of_text(reading: Reading, text: str, *, with_special: bool) -> "array[int]":
    """With what the tokenizer puts around a whole text, or without. Raises InvalidRequest for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"`prompt` holds text that is not Unicode: {error.reason}.", param="prompt") from error
    return reading.tokenizer.encode_whole(text, with_special=with_special)


def ids_of_chat(
    reading: Reading, messages: Messages, options: Mapping[str, object], *, with_special: bool
) -> "array[int] | None":
    """None where only the engine knows: its template is not here, or a message holds more than text.

    Raises InvalidRequest where the template refuses the messages."""
    if reading.template is None:
        return None
    plain, media_keys = plain_messages(messages, takes_parts=reading.template.takes_parts)
    if media_keys:
        return None
    return ids_of_text(reading, reading.template.render(plain, options), with_special=with_special)


def spelled(reading: Reading, ids: Sequence[int]) -> list[str]:
    """Each token as the vocabulary has it."""
    return [reading.tokenizer.spelling(id) or "" for id in ids]


def text_of(reading: Reading, ids: Sequence[int]) -> str:
    """Special tokens included. Raises InvalidRequest that names an id which is none of the vocabulary."""
    for at, id in enumerate(ids):
        if reading.tokenizer.spelling(id) is None:
            raise InvalidRequest(f"`tokens[{at}]` is {id}, which is no token of this model.", param=f"tokens[{at}]")
    return reading.tokenizer.decode(ids)
