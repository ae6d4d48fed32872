"""The small routes: voices, models, health, readiness, metrics, the OpenAPI document."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rt_drama3.protocol import Reference, Refused
from rt_drama3.protocol.clips import read_clip
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.http_bodies import media_type, openai_error, read_map
from rt_drama3.protocol.limits import ProtocolLimits
from rt_drama3.protocol.order import checked_audio, checked_voice, transcript
from rt_drama3.protocol.refusals import show
from rt_drama3.server import metrics
from rt_drama3.server.http.openapi import document
from rt_drama3.server.http.requests import (
    read_limited,
    reports_errors,
    request_id,
    service_of,
    while_connected,
)
from rt_drama3.server.openings import FIXED_VOICE
from rt_drama3.server.origins import check_reader, check_request
from rt_drama3.server.service import Service

DEFAULT_VOICE = "alloy"  # what clients of OpenAI ask for by default
VOICE_TYPES = (
    "Send application/json or application/msgpack; or the clip itself as audio/* or "
    "application/octet-stream, with name and text in the query."
)


async def health(request: Request) -> Response:
    """``GET /health``: the process is alive."""
    return JSONResponse({"status": "alive"})


async def ready(request: Request) -> Response:
    """``GET /ready``: speech can be asked for; 503 before and while stopping."""
    service = service_of(request)
    if service.ready:
        return JSONResponse({"status": "ready", "model": service.facts.name})
    state = "stopping" if service.drain.draining else "failed" if service.failure else "loading"
    return JSONResponse({"status": state, "message": service.failure}, 503, {"Retry-After": "1"})


async def openapi(request: Request) -> Response:
    """``GET /openapi.json``."""
    return JSONResponse(document(service_of(request).broadcaster is not None))


@reports_errors()
async def prometheus(request: Request) -> Response:
    """``GET /metrics``."""
    service = _readable(request)
    return Response(service.metrics.render(), headers={"Content-Type": metrics.CONTENT_TYPE})


@reports_errors()
async def models(request: Request) -> Response:
    """``GET /v1/models``, as OpenAI has it."""
    return JSONResponse({"object": "list", "data": [_model(_readable(request))]})


@reports_errors(openai_error)
async def one_model(request: Request) -> Response:
    """``GET /v1/models/{name}``, as OpenAI has it."""
    service, wanted = _readable(request), request.path_params["name"]
    if wanted != service.facts.name:
        raise Refused(
            "model_not_found",
            f"model {show(wanted)} is not loaded here; {show(service.facts.name)} is.",
        )
    return JSONResponse(_model(service))


@reports_errors(openai_error)
async def audio_models(request: Request) -> Response:
    """``GET /v1/audio/models``, for the settings of user interfaces."""
    return JSONResponse({"models": [{"id": _readable(request).facts.name}]})


@reports_errors(openai_error)
async def audio_voices(request: Request) -> Response:
    """``GET /v1/audio/voices``, for the settings of user interfaces.

    The first is the default voice, under a name that every client of OpenAI knows; a stored voice
    of that name takes its place.
    """
    stored = [voice.name for voice in _readable(request).voices.all()]
    voices = [{"id": name, "name": name} for name in stored]
    if DEFAULT_VOICE not in stored:
        voices.insert(0, {"id": DEFAULT_VOICE, "name": "default"})
    return JSONResponse({"voices": voices})


def _model(service: Service) -> dict[str, object]:
    return {"id": service.facts.name, "object": "model", "created": 0, "owned_by": "rt-drama3"}


@reports_errors()
async def list_voices(request: Request) -> Response:
    """``GET /v1/voices``."""
    voices = [voice.public() for voice in _readable(request).voices.all()]
    return JSONResponse({"object": "list", "data": voices})


@reports_errors()
async def add_voice(request: Request) -> Response:
    """``POST /v1/voices``: a name, and clips with their transcripts."""
    service, name = service_of(request), request_id(request)
    service.access.check_key(request.headers.get("authorization"))
    check_request(service.config, request.headers.get("origin"))
    drama = service.check_ready().drama
    address = request.client.host if request.client else ""
    with service.access.connection(address, "/v1/voices"):
        parts = await read_limited(request, service)
        read = partial(_read_voice, request, limits=service.limits)
        voice_name, clips = await service.workers.unpack(read, parts)
        clips = await while_connected(request, service.openings.decoded(clips))
        add, seconds = service.voices.add, service.limits.reference_seconds
        voice = await service.workers.encode(add, voice_name, clips, drama, seconds)
    notices = [FIXED_VOICE] if drama.fixed_voice else []
    return JSONResponse({**voice.public(), "notices": notices}, 201, {"X-Request-Id": name})


@reports_errors()
async def one_voice(request: Request) -> Response:
    """``GET|DELETE /v1/voices/{name}``."""
    service, wanted = _readable(request), request.path_params["name"]
    check_request(service.config, request.headers.get("origin"))
    voice = service.voices.get(wanted)
    if voice is None:
        raise Refused("unknown_voice", f"voice {wanted[:60]!r} is not stored here.")
    if request.method == "DELETE":
        await service.workers.run(service.voices.remove, wanted)
        return JSONResponse({"id": wanted, "object": "voice", "deleted": True})
    return JSONResponse(voice.public())


def _readable(request: Request) -> Service:
    """The service, if the client may read the server's own data."""
    service = service_of(request)
    service.access.check_key(request.headers.get("authorization"))
    check_reader(service.config, request.headers.get("host"))
    return service


def _read_voice(
    request: Request, body: bytes, limits: ProtocolLimits
) -> tuple[str, tuple[Reference, ...]]:
    """A voice from a map, or from an audio file with the rest in the query."""
    content_type = request.headers.get("content-type", "")
    kind = media_type(content_type)
    if kind.startswith("audio/") or kind == "application/octet-stream":
        fields = Fields(dict(request.query_params))
        name = checked_voice(fields, "name", fields.value("name"))
        return name, (Reference(transcript(fields, limits), checked_audio(body, limits)),)
    fields = Fields(read_map(body, content_type, limits, VOICE_TYPES))
    name = checked_voice(fields, "name", fields.value("name"))
    clips = fields.maps("references", limits.references) or [fields]
    return name, tuple(_clip(clip, limits) for clip in clips)


def _clip(clip: Fields, limits: ProtocolLimits) -> Reference:
    return read_clip(clip, transcript(clip, limits), limits)
