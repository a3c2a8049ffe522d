"""All WebSockets of one process: opened from the data port, looked after, told when the router stops. Knows the routes
that are sockets; what is said on them is `chat.py`'s matter."""

import asyncio

from websockets.frames import CloseCode

from router.core import Headers
from router.ports import Clock
from router.transports.websocket import words
from router.transports.websocket.chat import Begin, Chat, ChatLimits
from router.transports.websocket.socket import Socket, SocketLimits

CHAT_PATH = "/v1/chat/ws"
RECONNECT_AFTER_S = 1.0


class Sockets:
    """`begin` serves a request. `origins` are the pages that may connect, all where it is empty."""

    def __init__(
        self, begin: Begin, clock: Clock, limits: SocketLimits, chat: ChatLimits, origins: tuple[str, ...] = ()
    ) -> None:
        self.open: set[Socket] = set()
        self._begin = begin
        self._clock = clock
        self._limits = limits
        self._chat = chat
        self._origins = origins
        self._is_draining = False

    def takes(self, path: str, headers: Headers) -> bool:
        """Is this the head of a socket of ours?"""
        return path == CHAT_PATH and any(
            name == "upgrade" and value.strip().lower() == "websocket" for name, value in headers
        )

    def take(self, transport: asyncio.Transport, target: bytes, headers: Headers) -> None:
        """The connection is a socket's from now on."""
        socket = Socket(transport, self._open_chat, self._limits, self._clock, self.open.discard, self._origins)
        self.open.add(socket)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        socket.begin(b"GET %b HTTP/1.1\r\n%b\r\n" % (target, lines.encode("latin-1")), headers)
        if self._is_draining:
            socket.send(words.drain(RECONNECT_AFTER_S))

    def sweep(self) -> None:
        """Pings and timeouts. Called about once a second."""
        now = self._clock()
        for socket in list(self.open):
            socket.check(now)

    def drain(self) -> None:
        """Tell every client to open its next socket elsewhere; what is under way may end."""
        self._is_draining = True
        for socket in list(self.open):
            socket.send(words.drain(RECONNECT_AFTER_S))

    def close(self) -> None:
        for socket in list(self.open):
            socket.close(CloseCode.SERVICE_RESTART, "the router is stopping")

    def _open_chat(self, socket: Socket) -> Chat:
        return Chat(socket, self._begin, self._clock, self._chat)
