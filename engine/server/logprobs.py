"""Logprobs as OpenAI spells them: tokens as text and bytes, entries for chats, columns for completions.

Knows both shapes. Must not know how logprobs come about.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.sampling import TokenLogprobs
from engine.tokenizer import IncrementalDecoder

# JSON has no -inf. A token that cannot come is as good as this, and vLLM says the same.
_LEAST = -9999.0


@dataclass(eq=False, slots=True)
class Spelling:
    """Of one choice. `decoder` follows its text, from the echoed prompt on, to tell where each token begins in it."""

    token_bytes: Callable[[int], bytes]
    decoder: IncrementalDecoder
    _offset: int = field(default=0)

    def entry(self, told: TokenLogprobs) -> dict[str, Any]:
        """Of a chat's `logprobs.content`."""
        top = [self._named(token_id, logprob) for token_id, logprob in told.top]
        return {**self._named(told.token_id, told.logprob), "top_logprobs": top}

    def columns(self, told: Sequence[TokenLogprobs | int]) -> dict[str, list[Any]]:
        """Of a completion; a bare id is a token of which nothing is known: the first of a prompt."""
        columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for each in told:
            token_id = each if isinstance(each, int) else each.token_id
            columns["tokens"].append(self._text(token_id))
            columns["token_logprobs"].append(None if isinstance(each, int) else max(each.logprob, _LEAST))
            columns["top_logprobs"].append(None if isinstance(each, int) else self._top(each))
            columns["text_offset"].append(self._offset)
            self._offset += len(self.decoder.push(token_id))
        return columns

    def _named(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self.token_bytes(token_id)
        text = spelled.decode(errors="replace")
        return {"token": text, "logprob": max(logprob, _LEAST), "bytes": list(spelled)}

    def _top(self, told: TokenLogprobs) -> dict[str, float]:
        """The token itself is among them, also if it is not one of the likeliest."""
        everyone = [*told.top, (told.token_id, told.logprob)]
        return {self._text(token_id): max(logprob, _LEAST) for token_id, logprob in everyone}

    def _text(self, token_id: int) -> str:
        """Parts of characters are named by their bytes, as they would all look alike."""
        spelled = self.token_bytes(token_id)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
