"""All WebSockets of one process: opened from the data port, looked after, told when the router stops. Knows the routes
that are sockets; what is said on them is `chat.py`'s and `responses.py`'s matter."""

import asyncio
from dataclasses import dataclass

from websockets.frames import CloseCode

from router.core import Headers
from router.ports import Clock
from router.transports.responses.desk import ResponseDesk
from router.transports.websocket.chat import Begin, Chat, ChatLimits
from router.transports.websocket.responses import ResponsesTalk
from router.transports.websocket.socket import Socket, SocketLimits
from router.transports.websocket.visitor import Visitor

CHAT_PATH, RESPONSES_PATH = "/v1/chat/ws", "/v1/responses"
# Who has shown no key that is good by then will not.
STRANGER_S = 15.0


@dataclass(eq=False, slots=True)
class Visit:
    """A socket whose handshake was good; `is_checked` once its key was found good."""

    visitor: Visitor
    talk: Chat | ResponsesTalk
    began_at: float
    is_checked: bool = False


class Sockets:
    """`begin` serves a request, `desk` makes responses. `origins` are the pages that may connect, all where it is
    empty."""

    def __init__(
        self,
        begin: Begin,
        desk: ResponseDesk,
        clock: Clock,
        limits: SocketLimits,
        chat: ChatLimits,
        origins: tuple[str, ...] = (),
    ) -> None:
        self.open: set[Socket] = set()
        self._visits: dict[Socket, Visit] = {}
        self._begin = begin
        self._desk = desk
        self._clock = clock
        self._limits = limits
        self._chat = chat
        self._origins = origins
        self._is_draining = False

    def takes(self, path: str, headers: Headers) -> bool:
        """Is this the head of a socket of ours?"""
        return path in (CHAT_PATH, RESPONSES_PATH) and any(
            name == "upgrade" and value.strip().lower() == "websocket" for name, value in headers
        )

    def take(self, transport: asyncio.Transport, target: bytes, headers: Headers) -> None:
        """The connection is a socket's from now on."""
        path = target.partition(b"?")[0].decode("latin-1")

        def open_talk(socket: Socket) -> Chat | ResponsesTalk:
            return self._open_talk(path, socket)

        socket = Socket(transport, open_talk, self._limits, self._clock, self._lost, self._origins)
        self.open.add(socket)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        socket.begin(b"GET %b HTTP/1.1\r\n%b\r\n" % (target, lines.encode("latin-1")), headers)
        if self._is_draining and (visit := self._visits.get(socket)) is not None:
            visit.talk.drain()

    def sweep(self) -> None:
        """Pings, timeouts, strangers. Called about once a second."""
        now = self._clock()
        for socket in list(self.open):
            socket.check(now)
        for socket, visit in list(self._visits.items()):
            if visit.is_checked or now - visit.began_at <= STRANGER_S:
                continue
            visit.is_checked = visit.visitor.is_known
            if not visit.is_checked:
                socket.close(CloseCode.POLICY_VIOLATION, "no valid key was shown in time")

    def drain(self) -> None:
        """Tell every client to open its next socket elsewhere; what is under way may end."""
        self._is_draining = True
        for visit in list(self._visits.values()):
            visit.talk.drain()

    def close(self) -> None:
        for socket in list(self.open):
            socket.close(CloseCode.SERVICE_RESTART, "the router is stopping")

    def _open_talk(self, path: str, socket: Socket) -> Chat | ResponsesTalk:
        visitor = Visitor(socket.headers, socket.key, self._desk.owner_of)
        talk: Chat | ResponsesTalk
        if path == RESPONSES_PATH:
            talk = ResponsesTalk(socket, visitor, self._desk, self._chat)
        else:
            talk = Chat(socket, visitor, self._begin, self._clock, self._chat)
        self._visits[socket] = Visit(visitor, talk, self._clock())
        return talk

    def _lost(self, socket: Socket) -> None:
        self.open.discard(socket)
        self._visits.pop(socket, None)
