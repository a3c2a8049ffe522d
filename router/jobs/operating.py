"""What operators see of webhooks, on the admin port: those that were given up, of all tenants, and which secrets sign.
Knows paths and JSON; what happens is the book's and the secrets' matter."""

from dataclasses import dataclass

from aiohttp import web

from router.errors import InvalidRequest
from router.jobs.book import JobBook
from router.jobs.hooks import HookSender
from router.jobs.pages import MAX_LISTED, JobPages, decoded_object, json_answer, limit_of, tells_away, unknown_job

# While a secret is replaced, the old one signs too.
OVERLAP_S, MAX_OVERLAP_S = 24 * 3600.0, 30 * 24 * 3600.0


def add_operator_routes(app: web.Application, jobs: JobPages) -> None:
    app.middlewares.append(tells_away)
    pages = _OperatorPages(jobs.book, jobs.sender)
    app.router.add_get("/admin/webhooks", pages.dead_hooks)
    app.router.add_post("/admin/webhooks/{id}/replay", pages.replay)
    app.router.add_get("/admin/webhooks/secrets", pages.secrets)
    app.router.add_post("/admin/webhooks/secrets", pages.rotate)


@dataclass(frozen=True, slots=True)
class _OperatorPages:
    """A method for each page."""

    book: JobBook
    sender: HookSender

    async def dead_hooks(self, request: web.Request) -> web.Response:
        found = await self.book.dead_hooks(limit_of(request, MAX_LISTED))
        told = [job.told() | {"owner": job.owner, "fault": job.hook_fault} for job in found]
        return json_answer({"webhooks": told})

    async def replay(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        if not await self.book.replay(id):
            raise unknown_job(id)
        self.sender.wake()
        return json_answer({"id": id, "webhook_status": "pending"})

    async def secrets(self, _: web.Request) -> web.Response:
        return json_answer({"secrets": await self.sender.secrets.told()})

    async def rotate(self, request: web.Request) -> web.Response:
        """A new secret, in the only answer that ever holds it."""
        asked = decoded_object(await request.read() or b"{}")
        overlap_s = asked.get("overlap_seconds", OVERLAP_S)
        if type(overlap_s) not in (int, float) or not 0 <= overlap_s <= MAX_OVERLAP_S:
            words = f"`overlap_seconds` must be a number from 0 to {MAX_OVERLAP_S:.0f}."
            raise InvalidRequest(words, param="overlap_seconds")
        secret = await self.sender.secrets.rotate(overlap_s)
        return json_answer({"secret": secret, "secrets": await self.sender.secrets.told()}, 201)
