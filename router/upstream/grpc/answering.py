"""How the messages of an attempt's calls become its answer's bytes. Knows the order of things; knows neither contract
nor what bodies look like."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.core import Headers
from router.errors import BadAnswer, ConnectionCut
from router.upstream.grpc.answers import JSON, Said, Told, Whole, vectors


@dataclass(frozen=True, slots=True)
class Call:
    """The one message of a call, and the method's path."""

    method: str
    message: bytes


@dataclass(eq=False, slots=True)
class Generation:
    """A choice for each call. `read(index, message)` is the contract's."""

    answer: Told | Whole
    read: Callable[[int, bytes], Said]
    num_choices: int
    _has_ended: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._has_ended = [False] * self.num_choices

    @property
    def is_stream(self) -> bool:
        return isinstance(self.answer, Told)

    @property
    def headers(self) -> Headers:
        return self.answer.headers

    def take(self, index: int, message: bytes) -> bytes:
        """What the client is to be sent now, maybe nothing. Raises UpstreamError."""
        said = self.read(index, message)
        if self._has_ended[index]:
            return b""
        self._has_ended[index] = said.reason is not None
        return self.answer.said(index, said)

    def end(self) -> bytes:
        """What remains to be sent once all calls have ended. Raises ConnectionCut where a choice did not end."""
        if not all(self._has_ended):
            raise ConnectionCut("The replica ended its stream without a finish reason.")
        return self.answer.end()


@dataclass(eq=False, slots=True)
class Embedding:
    """`read(message)` gives the vectors of one call's texts, and the tokens of these."""

    model: str
    read: Callable[[bytes], tuple[Sequence[Sequence[float]], int]]
    num_calls: int
    num_texts: int
    is_base64: bool
    _found: dict[int, tuple[Sequence[Sequence[float]], int]] = field(default_factory=dict)

    headers = JSON
    is_stream = False

    def take(self, index: int, message: bytes) -> bytes:
        self._found[index] = self.read(message)
        return b""

    def end(self) -> bytes:
        """Raises BadAnswer where a text has no vector."""
        found = [self._found[index] for index in range(self.num_calls) if index in self._found]
        values = [vector for of_call, _ in found for vector in of_call]
        if len(values) != self.num_texts:
            raise BadAnswer(f"The replica answered with {len(values)} vectors for {self.num_texts} texts.")
        return vectors(self.model, values, sum(num_tokens for _, num_tokens in found), is_base64=self.is_base64)


Answering = Generation | Embedding


@dataclass(frozen=True, slots=True)
class Plan:
    """All that one attempt does."""

    calls: Sequence[Call]
    answering: Answering
