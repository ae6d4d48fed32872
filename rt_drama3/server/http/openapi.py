"""The OpenAPI document: the HTTP routes, with the schemas that the protocol publishes."""

from __future__ import annotations

import json
from typing import Any

from rt_drama3 import __version__
from rt_drama3.protocol import KINDS, load_schema

AUDIO_TYPES = ("audio/pcm", "audio/wav", "audio/mpeg", "audio/ogg", "audio/flac", "audio/aac")


def document(listening: bool = False) -> dict[str, Any]:
    """OpenAPI 3.1.

    Args:
        listening: the server lets others hear what is spoken.
    """
    defs = _schemas()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rt-drama3",
            "version": __version__,
            "description": (
                "Realtime speech. The WebSocket routes /v1/stream and /v1/tts/live are described "
                "in docs/protocol.md, and so is /v1/listen."
            ),
        },
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/tts": {"post": _speech("Fish Audio's speech route", "fish_request", defs, True)},
            "/v1/audio/speech": {
                "post": _speech("OpenAI's speech route", "openai_request", defs, False)
            },
            "/v1/audio/voices": {"get": _plain("Voices, for the settings of user interfaces")},
            "/v1/audio/models": {"get": _plain("Models, for the settings of user interfaces")},
            "/v1/models": {"get": _plain("The model that is served")},
            "/v1/models/{name}": {"get": _plain("The same, by its name")},
            "/v1/voices": {
                "get": _plain("Stored voices"),
                "post": {
                    "summary": "Store a voice",
                    "description": "JSON or MessagePack, or an audio file with name and text in "
                    "the query.",
                    "requestBody": _body({"$ref": "#/components/schemas/new_voice"}, True),
                    "responses": _answers("201", "stored"),
                },
            },
            "/v1/voices/{name}": {
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
                ],
                "get": _plain("A stored voice"),
                "delete": _plain("Forget a voice"),
            },
            "/health": {"get": _plain("The process is alive")},
            "/ready": {"get": _plain("Speech can be asked for; 503 while it cannot")},
            "/metrics": {"get": {"summary": "Prometheus", "responses": {"200": _said("text")}}},
            **({"/v1/stop": {"post": _STOP}} if listening else {}),
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {**defs, "new_voice": _NEW_VOICE, "error": _ERROR},
        },
    }


_AUDIO = {
    "type": "string",
    "description": "an audio file in base64 or, where the server fetches URLs, its URL",
}
_NEW_VOICE: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "maxLength": 128},
        "text": {"type": "string", "description": "what is said in the clip"},
        "audio": _AUDIO,
        "references": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["text", "audio"],
                "properties": {
                    "text": {"type": "string"},
                    "audio": _AUDIO,
                },
            },
        },
    },
}
_STOP: dict[str, Any] = {
    "summary": "Be quiet now: the local sink and all listeners",
    "requestBody": {
        "required": False,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "cancel": {
                            "type": "boolean",
                            "description": "end the clients' running speech as well",
                        }
                    },
                }
            }
        },
    },
    "responses": {
        "200": {
            "description": "quiet",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "status": {"const": "quiet"},
                            "cancelled": {"type": "integer"},
                        },
                    }
                }
            },
        }
    },
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"type": "integer"},
        "message": {"type": "string"},
        "code": {"enum": list(KINDS)},
        "remedy": {"type": "string"},
        "retriable": {"type": "boolean"},
        "request_id": {"type": "string"},
    },
}


def _schemas() -> dict[str, Any]:
    """The protocol's definitions, their references moved to where OpenAPI keeps schemas."""
    text = json.dumps(load_schema("http")["$defs"])
    moved: dict[str, Any] = json.loads(text.replace("#/$defs/", "#/components/schemas/"))
    return moved


def _speech(summary: str, schema: str, defs: dict[str, Any], msgpack: bool) -> dict[str, Any]:
    known = {"$ref": f"#/components/schemas/{schema}"} if schema in defs else {"type": "object"}
    headers = {
        name: {"schema": {"type": kind}}
        for name, kind in (
            ("X-Request-Id", "string"),
            ("X-Sample-Rate", "integer"),
            ("X-Channels", "integer"),
            ("X-Bit-Depth", "integer"),
            ("X-Notice", "string"),
        )
    }
    audio = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in AUDIO_TYPES}
    answer = {"description": "audio, as it is made", "headers": headers, "content": audio}
    return {
        "summary": summary,
        "requestBody": _body(known, msgpack),
        "responses": {**_answers("200", "audio"), "200": answer},
    }


def _body(schema: dict[str, Any], msgpack: bool) -> dict[str, Any]:
    kinds = ["application/json", *(["application/msgpack"] if msgpack else [])]
    return {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}


def _plain(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": _answers("200", "done")}


def _answers(status: str, description: str) -> dict[str, Any]:
    error = {"$ref": "#/components/schemas/error"}
    content = {"application/json": {"schema": error}}
    return {status: _said(description), "default": {"description": "an error", "content": content}}


def _said(description: str) -> dict[str, Any]:
    return {"description": description}
