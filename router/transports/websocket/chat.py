"""`/v1/chat/ws`: many requests and conversations on one socket. Knows our words and whom they are for; frames are
`socket.py`'s matter, and serving a request the proxy's."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from router.core import Headers, Request, Surface
from router.errors import InvalidRequest, PointsmanError
from router.openai import error_object
from router.ports import Clock, Reply
from router.transports import chunks
from router.transports.asking import new_request
from router.transports.conversation import Answering, Conversation
from router.transports.turns import Turns
from router.transports.websocket import words
from router.transports.websocket.answer import Answer
from router.transports.websocket.socket import Socket
from router.transports.websocket.visitor import Visitor

Begin = Callable[[Request, Reply], object]

MAX_SESSIONS = 64
RECONNECT_AFTER_S = 1.0
_PATHS = {surface.value: surface for surface in Surface}


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """Seconds of one request; requests open on one socket; bytes of one conversation."""

    request_timeout_s: float = 600.0
    max_requests: int = 256
    max_session_bytes: int = 8 * 2**20


@dataclass(eq=False, slots=True)
class Session:
    """A conversation on a socket, and who waits in it."""

    conversation: Conversation
    turns: Turns[words.InputCommit] = field(init=False)
    turn: Answer | None = None
    prefill: Answer | None = None

    def __post_init__(self) -> None:
        self.turns = Turns("id", lambda: self.conversation.is_prefilling)


class Chat:
    """`ports.Talk` of one socket. `begin` serves a request."""

    def __init__(self, socket: Socket, visitor: Visitor, begin: Begin, clock: Clock, limits: ChatLimits) -> None:
        self._socket = socket
        self._visitor = visitor
        self._begin = begin
        self._clock = clock
        self._limits = limits
        self._answers: dict[str, Answer] = {}
        self._sessions: dict[str, Session] = {}
        self._is_paused = False

    # ports.Talk

    def received(self, text: str) -> None:
        try:
            word = words.decode(text)
            self._take(word)
        except PointsmanError as error:
            id, session = words.named(text)
            self._socket.send(words.failed(id, session, error_object(error), error.status))

    def pause(self) -> None:
        self._is_paused = True
        for answer in list(self._answers.values()):
            if answer.flow is not None:
                answer.flow.pause()

    def resume(self) -> None:
        self._is_paused = False
        for answer in list(self._answers.values()):
            if answer.flow is not None:
                answer.flow.resume()

    def lost(self) -> None:
        for session in self._sessions.values():
            session.turns.clear()
        for answer in list(self._answers.values()):
            answer.stop()
        for session in self._sessions.values():
            if session.prefill is not None:
                session.prefill.stop()

    # for the port

    def drain(self) -> None:
        """The client shall open its next socket elsewhere; what is under way may end."""
        self._socket.send(words.drain(RECONNECT_AFTER_S))

    # the rest

    @property
    def num_open(self) -> int:
        """Requests and turns under way."""
        return len(self._answers)

    def _take(self, word: words.Word) -> None:
        match word:
            case words.RequestCreate():
                self._create(word)
            case words.RequestCancel():
                self._cancel(word.id)
            case words.SessionOpen():
                self._open_session(word)
            case words.InputAppend():
                self._append(word)
            case words.InputCommit():
                self._commit(word)
            case words.SessionClose():
                self._close_session(word.session)
            case words.Auth():
                self._visitor.show(word.key)

    def _create(self, word: words.RequestCreate) -> None:
        surface = _PATHS.get(word.path)
        if surface is None:
            raise InvalidRequest(f"`path` must be one of {', '.join(_PATHS)}.", param="path")
        self._check_new(word.id)
        body = _streaming(bytes(word.body)) if surface is not Surface.EMBEDDINGS else bytes(word.body)
        self._start(Answer(word.id, self._socket.send, lambda: self._ended(word.id)), surface, body, ())

    def _cancel(self, id: str) -> None:
        answer = self._answers.get(id)
        if answer is None:
            if not any(session.turns.withdraw(id) for session in self._sessions.values()):
                return  # it has ended meanwhile, or never was: either way it is not running
        else:
            answer.stop()
        self._socket.send(words.done(id))

    def _open_session(self, word: words.SessionOpen) -> None:
        if word.session in self._sessions:
            raise InvalidRequest(f"The session `{word.session}` is open already.", param="session")
        if len(self._sessions) >= MAX_SESSIONS:
            raise InvalidRequest(f"A socket holds at most {MAX_SESSIONS} sessions.", param="session")
        messages = word.body.pop("messages", [])
        if not isinstance(messages, list):
            raise InvalidRequest("`messages` must be a list.", param="messages")
        self._sessions[word.session] = Session(Conversation(word.body, self._limits.max_session_bytes, messages))
        self._socket.send(words.opened(word.session))

    def _append(self, word: words.InputAppend) -> None:
        session = self._session(word.session)
        session.conversation.append(word.text)
        if session.turns.is_idle:
            self._prefill(session)

    def _prefill(self, session: Session) -> None:
        body = session.conversation.prefill_body()
        if body is None:
            return

        def ended() -> None:
            session.prefill = None
            session.conversation.prefilled()
            self._next_turn(session)
            if session.turns.is_idle:
                self._prefill(session)

        session.prefill = Answer("", lambda _: None, ended)
        try:
            self._start(session.prefill, Surface.CHAT, body, session.conversation.headers)
        except PointsmanError:
            session.prefill = None
            session.conversation.prefilled()
            raise

    def _commit(self, word: words.InputCommit) -> None:
        session = self._session(word.session)
        self._check_new(word.id)
        session.turns.add(word.id, word)
        self._next_turn(session)

    def _next_turn(self, session: Session) -> None:
        while (word := session.turns.next()) is not None:
            try:
                self._turn(session, word)
            except PointsmanError as error:
                session.turns.end()
                self._socket.send(words.failed(word.id, word.session, error_object(error), error.status))

    def _turn(self, session: Session, word: words.InputCommit) -> None:
        body, told = session.conversation.commit(word.messages), Answering()

        def ended() -> None:
            session.conversation.answered(told)
            session.turn = None
            session.turns.end()
            self._ended(word.id)
            self._next_turn(session)

        session.turn = Answer(word.id, self._socket.send, ended, lambda data: told.add(chunks.decode(data)))
        try:
            self._start(session.turn, Surface.CHAT, body, session.conversation.headers)
        except PointsmanError:
            session.turn = None
            session.conversation.withdraw()
            raise

    def _close_session(self, name: str) -> None:
        session = self._session(name)
        del self._sessions[name]
        session.turns.clear()
        for answer in (session.turn, session.prefill):
            if answer is not None:
                answer.stop()

    def _start(self, answer: Answer, surface: Surface, body: bytes, more: Headers) -> None:
        now = self._clock()
        headers = (*self._visitor.headers, *more)
        request = new_request(surface, body, headers, now, now + self._limits.request_timeout_s)
        if answer.id:
            self._answers[answer.id] = answer
        self._begin(request, answer)
        if self._is_paused and answer.flow is not None:
            answer.flow.pause()

    def _ended(self, id: str) -> None:
        self._answers.pop(id, None)

    def _check_new(self, id: str) -> None:
        if id in self._answers:
            raise InvalidRequest(f"The id `{id}` is in use on this socket.", param="id")
        if len(self._answers) >= self._limits.max_requests:
            raise InvalidRequest(f"A socket holds at most {self._limits.max_requests} open requests.", param="id")

    def _session(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            raise InvalidRequest(f"There is no session `{name}` on this socket.", param="session")
        return session

    def __repr__(self) -> str:
        return f"<Chat {len(self._answers)} requests, {len(self._sessions)} sessions>"


def _streaming(body: bytes) -> bytes:
    """A socket's answers are streams, with their usage at the end."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        raise InvalidRequest("`body` must be a JSON object.", param="body") from None
    fields["stream"] = msgspec.Raw(b"true")
    fields.setdefault("stream_options", msgspec.Raw(b'{"include_usage":true}'))
    return msgspec.json.encode(fields)
