"""The routes of jobs on the data port: asynchronous requests, files, batches. Knows paths and OpenAI's shapes; who may
ask is the guard's matter, and what happens the book's, the shelf's and the batches'."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import BodyPartReader, MultipartReader, web

from router.core import Surface
from router.errors import InvalidRequest, PointsmanError
from router.jobs import asking, lines
from router.jobs.addresses import Reach
from router.jobs.batches import COMPLETION_WINDOW_S, Batch, BatchBook, BatchDocument
from router.jobs.book import JobBook
from router.jobs.files import PIECE_BYTES, Shelf
from router.jobs.hooks import HookSender
from router.jobs.runner import JobRunner
from router.jobs.states import Job
from router.store.errors import StoreAway
from router.transports.keypages import CALLER

SSE_POLL_S = 0.25
MAX_LISTED = 100
PURPOSES = ("batch", "user_data", "assistants", "vision", "fine-tune", "evals")


class UnknownJob(InvalidRequest):
    status = 404
    code = "async_request_not_found"


class UnknownBatch(InvalidRequest):
    status = 404
    code = "batch_not_found"


class JobsAway(PointsmanError):
    """Jobs are kept in Redis, and it is not there."""

    status = 503
    type = "service_unavailable"
    code = "jobs_unavailable"


@dataclass(frozen=True, slots=True)
class JobPages:
    """What the routes use. `keep_s` is how long a job is kept once it has ended."""

    book: JobBook
    batches: BatchBook
    shelf: Shelf
    runner: JobRunner
    sender: HookSender
    reach: Reach
    keep_s: float = 24 * 3600.0

    async def submit(self, request: web.Request) -> web.Response:
        return await self._submit(request, Surface(f"/v1/{request.match_info['surface']}"))

    async def submit_preferred(self, request: web.Request) -> web.Response:
        """`Prefer: respond-async` on a usual route (RFC 7240)."""
        response = await self._submit(request, Surface(request.path))
        response.headers["preference-applied"] = "respond-async"
        return response

    async def _submit(self, request: web.Request, surface: Surface) -> web.Response:
        caller = request[CALLER]
        job, model = asking.new_job(surface, await request.read(), caller.tenant, self.reach, self.keep_s)
        caller.check_model(model)
        headers = {name.lower(): value for name, value in request.headers.items()}
        id = await self.book.submit([job], asking.same_key(caller.tenant, headers))
        self.runner.wake()
        found = await self._job(request, id)
        return json_answer(found.told(), 202, {"location": f"/v1/async/{id}"})

    async def read(self, request: web.Request) -> web.StreamResponse:
        job = await self._job(request, request.match_info["id"])
        if "text/event-stream" in request.headers.get("accept", ""):
            return await self._follow(request, job)
        return json_answer(job.told())

    async def cancel(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        if await self.book.cancel(id, request[CALLER].tenant) is None:
            raise unknown_job(id)
        return json_answer((await self._job(request, id)).told())

    async def replay(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        if not await self.book.replay(id, request[CALLER].tenant):
            raise unknown_job(id)
        self.sender.wake()
        return json_answer((await self._job(request, id)).told())

    async def upload(self, request: web.Request) -> web.Response:
        """Some SDKs send the file's purpose behind it."""
        fields: dict[str, str] = {}
        if not request.content_type.startswith("multipart/"):
            raise InvalidRequest("The body must be multipart/form-data.", param="file")
        form = await request.multipart()
        file = await _file_in(form, fields)
        if file is None:
            raise InvalidRequest("The form must have a part `file`.", param="file")
        if "purpose" in fields:
            _purpose(fields)  # a wrong one is no reason to read the file

        async def purpose() -> str:
            if await _file_in(form, fields) is not None:
                raise InvalidRequest("The form must have one part `file`.", param="file")
            return _purpose(fields)

        record = await self.shelf.put(request[CALLER].tenant, file.filename or "upload", purpose, _pieces(file))
        return json_answer(record.told())

    async def files(self, request: web.Request) -> web.Response:
        found = await self.shelf.owned(request[CALLER].tenant)
        if purpose := request.query.get("purpose"):
            found = [record for record in found if record.purpose == purpose]
        return _listed([record.told() for record in found], request)

    async def file(self, request: web.Request) -> web.Response:
        record = await self.shelf.get(request[CALLER].tenant, request.match_info["id"])
        return json_answer(record.told())

    async def content(self, request: web.Request) -> web.StreamResponse:
        record = await self.shelf.get(request[CALLER].tenant, request.match_info["id"])
        return web.FileResponse(self.shelf.path(record.id), headers={"content-type": "application/octet-stream"})

    async def delete_file(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        await self.shelf.delete(request[CALLER].tenant, id)
        return json_answer({"id": id, "object": "file", "deleted": True})

    async def create_batch(self, request: web.Request) -> web.Response:
        asked = decoded_object(await request.read())
        owner = request[CALLER].tenant
        endpoint = lines.checked_surface(asked.get("endpoint"))
        if asked.get("completion_window") != "24h":
            raise InvalidRequest("`completion_window` must be 24h.", param="completion_window")
        record = await self.shelf.get(owner, str(asked.get("input_file_id")))
        now = int(self.shelf.wall())
        document = BatchDocument(
            input_file_id=record.id,
            endpoint=endpoint,
            created_at=now,
            expires_at=now + int(COMPLETION_WINDOW_S),
            metadata=_metadata(asked.get("metadata")),
        )
        return json_answer((await self.batches.create(owner, document, COMPLETION_WINDOW_S)).told())

    async def list_batches(self, request: web.Request) -> web.Response:
        most = limit_of(request, 20)
        found = await self.batches.owned(request[CALLER].tenant, request.query.get("after"), most + 1)
        told = [batch.told() for batch in found[:most]]
        return json_answer(_list(told, has_more=len(found) > most))

    async def batch(self, request: web.Request) -> web.Response:
        return json_answer((await self._batch(request)).told())

    async def cancel_batch(self, request: web.Request) -> web.Response:
        batch = await self._batch(request)
        await self.batches.cancel(batch.id, batch.owner)
        return json_answer((await self._batch(request)).told())

    async def _follow(self, request: web.Request, job: Job) -> web.StreamResponse:
        """An event for each change of its state, the last with the answer."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        response.force_close()
        await response.prepare(request)
        told = None
        while True:
            if job.state is not told:
                told = job.state
                await response.write(b"data: " + msgspec.json.encode(job.told()) + b"\n\n")
            if job.has_ended:
                await response.write(b"data: [DONE]\n\n")
                return response
            await asyncio.sleep(SSE_POLL_S)
            job = await self._job(request, job.id)

    async def _job(self, request: web.Request, id: str) -> Job:
        job = await self.book.get(id, request[CALLER].tenant)
        if job is None:
            raise unknown_job(id)
        return job

    async def _batch(self, request: web.Request) -> Batch:
        id = request.match_info["id"]
        batch = await self.batches.get(id, request[CALLER].tenant)
        if batch is None:
            raise UnknownBatch(f"There is no batch `{id}`.", param="batch_id")
        return batch


def add_job_routes(app: web.Application, pages: JobPages) -> None:
    """On the data port."""
    app.middlewares.append(tells_away)
    app.on_response_prepare.append(_end_upload)
    router = app.router
    surfaces = "|".join(surface.removeprefix("/v1/") for surface in Surface)
    router.add_post(f"/v1/async/{{surface:{surfaces}}}", pages.submit)
    for surface in Surface:
        router.add_post(surface, pages.submit_preferred)  # lent here by the data port for this alone
    router.add_get("/v1/async/{id}", pages.read)
    router.add_delete("/v1/async/{id}", pages.cancel)
    router.add_post("/v1/async/{id}/webhook", pages.replay)
    router.add_post("/v1/files", pages.upload)
    router.add_get("/v1/files", pages.files)
    router.add_get("/v1/files/{id}", pages.file)
    router.add_get("/v1/files/{id}/content", pages.content)
    router.add_delete("/v1/files/{id}", pages.delete_file)
    router.add_post("/v1/batches", pages.create_batch)
    router.add_get("/v1/batches", pages.list_batches)
    router.add_get("/v1/batches/{id}", pages.batch)
    router.add_post("/v1/batches/{id}/cancel", pages.cancel_batch)


async def _end_upload(request: web.Request, response: web.StreamResponse) -> None:
    """So that a file need not be held, its connection is aiohttp's for good: whatever the answer, it is the last."""
    if request.method == "POST" and request.path == "/v1/files":
        response.force_close()
        response.headers["connection"] = "close"  # it is too late for aiohttp to say so by itself


@web.middleware
async def tells_away(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except StoreAway as error:
        raise JobsAway(f"Jobs are kept in Redis, which is away: {error}.", retry_after_s=5.0) from None
    return response


def _purpose(fields: dict[str, str]) -> str:
    purpose = fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise InvalidRequest(f"`purpose` must be one of {', '.join(PURPOSES)}.", param="purpose")
    return purpose


async def _file_in(form: MultipartReader, fields: dict[str, str]) -> BodyPartReader | None:
    """The file's part, once it comes; what stands before it goes into the fields."""
    async for part in form:
        if not isinstance(part, BodyPartReader):
            raise InvalidRequest("A part of the form may not be multipart itself.", param="file")
        if part.name == "file":
            return part
        if part.name is not None:
            fields[part.name] = (await part.read(decode=True))[:1000].decode("utf-8", "replace")
    return None


async def _pieces(part: BodyPartReader) -> AsyncIterator[bytes]:
    while piece := await part.read_chunk(PIECE_BYTES):
        yield piece


def decoded_object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body must be a JSON object: {error}.") from None


def _metadata(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    try:
        return msgspec.convert(given, dict[str, str])
    except msgspec.ValidationError:
        raise InvalidRequest("`metadata` must be an object of strings.", param="metadata") from None


def limit_of(request: web.Request, default: int) -> int:
    text = request.query.get("limit", str(default))
    if not text.isdecimal() or not 1 <= int(text) <= MAX_LISTED:
        raise InvalidRequest(f"`limit` must be a number from 1 to {MAX_LISTED}.", param="limit")
    return int(text)


def _listed(told: list[dict[str, Any]], request: web.Request) -> web.Response:
    ids = [each["id"] for each in told]
    after = request.query.get("after")
    first = ids.index(after) + 1 if after in ids else 0
    most = limit_of(request, MAX_LISTED)
    return json_answer(_list(told[first : first + most], has_more=len(told) > first + most))


def _list(told: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    first, last = (told[0]["id"], told[-1]["id"]) if told else (None, None)
    return {"object": "list", "data": told, "first_id": first, "last_id": last, "has_more": has_more}


def json_answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json", headers=headers)


def unknown_job(id: str) -> UnknownJob:
    return UnknownJob(f"There is no asynchronous request `{id}`.", param="id")
