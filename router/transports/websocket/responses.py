"""`/v1/responses` as a socket: OpenAI's WebSocket mode. Knows its messages and their order; frames are `socket.py`'s
matter, and making a response the desk's.

Requests of one `stream_id` are answered one after the other, those of different ones side by side. The socket remembers
the latest conversations on it, so that also what is not stored can be followed here.
"""

from collections.abc import Coroutine
from typing import Any

from websockets.frames import CloseCode

from router.errand import Errand, State, own_task
from router.errors import InvalidRequest, Overloaded, PointsmanError
from router.transports.leaving import Leaving, Valve
from router.transports.responses.desk import ResponseDesk
from router.transports.responses.recent import Recent
from router.transports.responses.states import UnknownResponse
from router.transports.turns import Turns
from router.transports.websocket import response_words as words
from router.transports.websocket.chat import ChatLimits
from router.transports.websocket.lanes import Lane, LaneAnswer
from router.transports.websocket.socket import Socket
from router.transports.websocket.visitor import Visitor
from router.transports.websocket.words import Auth

# OpenAI's own limits.
MAX_RUNNING = 16
MAX_NAMED_LANES = 32


class TooManyStreams(InvalidRequest):
    code = "websocket_stream_limit_reached"


class ComeBack(InvalidRequest):
    """Clients take it as a reason to open another connection."""

    code = "websocket_connection_limit_reached"


class ResponsesTalk:
    """`ports.Talk` of one socket."""

    def __init__(self, socket: Socket, visitor: Visitor, desk: ResponseDesk, limits: ChatLimits) -> None:
        self._socket = socket
        self._visitor = visitor
        self._desk = desk
        self._limits = limits
        self._recent = Recent(limits.max_session_bytes)
        self._lanes: dict[str | None, Lane] = {}
        self._errands: set[Errand] = set()
        self._num_asked = 0
        self._is_paused = self._is_draining = False

    # ports.Talk

    def received(self, text: str) -> None:
        try:
            self._take(words.decode(text))
        except PointsmanError as error:
            self._socket.send(words.failed(error, words.named(text)))

    def pause(self) -> None:
        self._is_paused = True
        for answer in self._answers():
            if answer.flow is not None:
                answer.flow.pause()

    def resume(self) -> None:
        self._is_paused = False
        for answer in self._answers():
            if answer.flow is not None:
                answer.flow.resume()

    def lost(self) -> None:
        for lane in self._lanes.values():
            lane.turns.clear()
        for answer in self._answers():
            answer.leave()

    # for the port

    def drain(self) -> None:
        """What is asked for is answered; then the socket closes."""
        self._is_draining = True
        self._close_if_idle()

    # the rest

    @property
    def num_open(self) -> int:
        """Responses under way, and those that wait."""
        return sum(lane.turns.num_waiting + (lane.answer is not None) for lane in self._lanes.values())

    def _answers(self) -> list[LaneAnswer]:
        return [lane.answer for lane in self._lanes.values() if lane.answer is not None]

    def _take(self, word: words.Word) -> None:
        match word:
            case words.Create() | words.Resume():
                self._ask(word)
            case words.Cancel():
                self._cancel(word.response_id)
            case Auth():
                self._visitor.show(word.key)

    def _ask(self, word: words.Create | words.Resume) -> None:
        if self._is_draining:
            raise ComeBack("This router is stopping: open another connection.")
        if self.num_open >= self._limits.max_requests:
            raise Overloaded(f"A socket holds at most {self._limits.max_requests} open requests.")
        lane = self._lanes.get(word.stream_id)
        if lane is None:
            if word.stream_id is not None and len(self._lanes.keys() - {None}) >= MAX_NAMED_LANES:
                raise TooManyStreams(f"A socket has at most {MAX_NAMED_LANES} streams.", param="stream_id")
            turns = Turns[words.Create | words.Resume]("stream_id", most_waiting=self._limits.max_requests)
            lane = self._lanes[word.stream_id] = Lane(word.stream_id, turns)
        self._num_asked += 1
        lane.turns.add(str(self._num_asked), word)
        self._begin()

    def _begin(self) -> None:
        """Those whose turn it is, as many as may be."""
        for lane in list(self._lanes.values()):
            if sum(each.answer is not None for each in self._lanes.values()) >= MAX_RUNNING:
                return
            if (word := lane.turns.next()) is not None:
                self._serve(lane, word)

    def _serve(self, lane: Lane, word: words.Create | words.Resume) -> None:
        followed = word.response_id if isinstance(word, words.Resume) else None
        answer = lane.answer = LaneAnswer(self._socket.send, lane.stream_id, lambda: self._is_paused, followed)
        leaving = Leaving()
        leaving.errand = errand = self._owned(self._answer(lane, word, answer, leaving))
        answer.bind(leaving)
        errand.step()

    async def _answer(
        self, lane: Lane, word: words.Create | words.Resume, answer: LaneAnswer, leaving: Leaving
    ) -> None:
        desk, headers = self._desk, self._visitor.headers
        try:
            if isinstance(word, words.Resume):
                await self._follow(word, answer, leaving)
            elif word.generate is False:
                await desk.prepare(headers, word.body, answer, leaving, self._recent)
            else:
                await desk.respond(headers, word.body, answer, leaving, self._recent)
        except PointsmanError as error:
            answer.fail(error)
        finally:
            lane.answer = None
            lane.turns.end()
            self._begin()
            self._close_if_idle()

    async def _follow(self, word: words.Resume, answer: LaneAnswer, leaving: Leaving) -> None:
        await own_task()
        valve, after = Valve(leaving), -1 if word.starting_after is None else word.starting_after
        owner = self._desk.owner_of(self._visitor.headers)
        async with await self._desk.following.open(owner, word.response_id, after) as found:
            answer.bind(valve)
            async for events in found:
                for event in events:
                    answer.tell(event)
                await valve.open.wait()

    def _cancel(self, id: str) -> None:
        answer = next((each for each in self._answers() if each.id == id), None)
        if answer is None:
            raise UnknownResponse(id)
        if answer.followed or id in self._desk.runs.held:
            self._owned(self._stop(id)).step()
        else:
            answer.cancel()

    async def _stop(self, id: str) -> None:
        """One that would go on without its client."""
        try:
            await self._desk.runs.cancel(self._desk.owner_of(self._visitor.headers), id)
        except PointsmanError as error:
            self._socket.send(words.failed(error, None))

    def _owned(self, steps: Coroutine[Any, Any, None]) -> Errand:
        """Until it has ended."""
        self._errands = {errand for errand in self._errands if errand.state is not State.ENDED}
        errand = Errand(steps)
        self._errands.add(errand)
        return errand

    def _close_if_idle(self) -> None:
        if self._is_draining and not self.num_open:
            self._socket.close(CloseCode.SERVICE_RESTART, "the router is stopping")

    def __repr__(self) -> str:
        return f"<ResponsesTalk {self.num_open} open on {len(self._lanes)} streams>"
