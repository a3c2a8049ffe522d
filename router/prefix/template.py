"""The chat template of a pool, as pointsman.chat_template renders it. Knows which errors of the router its faults are.

Knows nothing of tokens, pools or replicas.
"""

from collections.abc import Mapping, Sequence

from pointsman import chat_template
from pointsman.chat_template import RenderError, TemplateSourceError
from router.errors import InvalidRequest
from router.prefix.source import SourceError

Messages = Sequence[Mapping[str, object]]


class ChatTemplate(chat_template.ChatTemplate):
    """One model's template."""

    __slots__ = ()

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises SourceError for a template that does not parse."""
        try:
            super().__init__(source, special_tokens)
        except TemplateSourceError as error:
            raise SourceError(f"`chat_template`, {error}") from error

    def render(self, messages: Messages, options: Mapping[str, object]) -> str:
        """Raises InvalidRequest naming `messages` where the template refuses them."""
        try:
            return super().render(messages, options)
        except RenderError as error:
            raise InvalidRequest(str(error), param="messages") from error
