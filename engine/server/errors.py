"""Errors as clients see them: OpenAI's body, on every path.

Knows HTTP statuses and the shape of the body. Must not know what went wrong where.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_TYPES = {400: "invalid_request_error", 404: "not_found_error", 503: "service_unavailable_error"}


class ApiError(Exception):
    """`param` names the field at fault; `code` is for programs to read."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> bytes:
        return msgspec.json.encode(
            {
                "error": {
                    "message": str(self),
                    "type": _error_type(self.status),
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def response(self) -> web.Response:
        return web.Response(status=self.status, body=self.body(), content_type="application/json")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPException as error:
        return _translate(request, error).response()
    except ConnectionResetError:
        # The client has gone: there is nobody to tell, and nothing is wrong.
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return ApiError(500, "internal error, see the engine's log").response()


def _translate(request: web.Request, error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals: no such route, wrong method, body over the limit."""
    if isinstance(error, web.HTTPNotFound):
        return ApiError(404, f"no route {request.path}", code="not_found")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ApiError(405, f"{request.path} takes {allowed}, not {request.method}", code="method_not_allowed")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(413, str(error.text), code="request_too_large")
    return ApiError(error.status, error.text or error.reason)


def _error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "internal_error")
