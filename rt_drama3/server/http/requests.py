"""What HTTP routes have in common: the request's id, body and errors."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol import Refused, as_refused, error_headers, fish_error, new_request_id
from rt_drama3.server.service import Service

log = logging.getLogger("rt_drama3.server")

_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)

T = TypeVar("T")
ErrorShape = Callable[[RtDrama3Error, str], tuple[int, dict[str, Any]]]
Endpoint = Callable[[Request], Awaitable[Response]]


def service_of(request: Request) -> Service:
    """The server's shared state."""
    service: Service = request.app.state.service
    return service


def request_id(request: Request) -> str:
    """The client's ``X-Request-Id`` if it is a plain word, otherwise a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else new_request_id()


def error_response(
    service: Service, error: RtDrama3Error, name: str, shape: ErrorShape = fish_error
) -> Response:
    """An error in the shape of its API; counts and logs it."""
    refused = as_refused(error)
    service.metrics.errors.labels(refused.code).inc()
    log.info("refused", extra={"fields": {"id": name, "code": refused.code}})
    if refused.code == "internal":
        log.error("request %s failed: %s", name, error)
    status, body = shape(refused, name)
    return JSONResponse(body, status, error_headers(refused, name))


def reports_errors(shape: ErrorShape = fish_error) -> Callable[[Endpoint], Endpoint]:
    """Decorates an endpoint: its errors become responses in the shape of its API."""

    def decorate(endpoint: Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def wrapper(request: Request) -> Response:
            try:
                return await endpoint(request)
            except RtDrama3Error as error:
                return error_response(service_of(request), error, request_id(request), shape)
            except ClientDisconnect:
                return Response(status_code=499)

        return wrapper

    return decorate


async def read_body(request: Request, limit: int, seconds: float) -> list[bytes]:
    """The body in the parts in which it arrived; joining a large one is left to a thread.

    Args:
        request: not read yet.
        limit: bytes that it may have.
        seconds: for all of it to arrive.

    Raises:
        Refused: ``too_large`` or ``idle``.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise Refused("too_large", f"the body is {length} bytes; the limit is {limit}.")
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise Refused("too_large", f"the body is over the limit of {limit} bytes.")
    except TimeoutError:
        raise Refused(
            "idle",
            f"the body did not arrive within {seconds:g} s (body_seconds); {size} bytes did.",
        ) from None
    return parts


async def read_limited(request: Request, service: Service) -> list[bytes]:
    """``read_body`` within the server's limits."""
    return await read_body(request, service.limits.message_bytes, service.config.body_seconds)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Does something for a client whose body was read, and stops when the client leaves.

    Raises:
        ClientDisconnect: it left.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.wait({task, gone})


async def until_gone(receive: Receive) -> None:
    """Waits until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
