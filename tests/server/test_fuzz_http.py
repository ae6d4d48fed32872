"""Bodies of every kind for every route that takes one: an answer or a documented error, no 500.

``RT_DRAMA3_FUZZ`` and ``RT_DRAMA3_FUZZ_SEED`` are as in test_fuzz_sockets.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import strategies as st

from tests.fuzz.mutations import ODD, broken, changed, packed
from tests.fuzz.schemas import TEXT, bodies, drawn
from tests.fuzz.targets import sounds
from tests.protocol.tools import check
from tests.server.tools import Place, serving, sse_events
from tests.small import WAIT, ending_drama

ITEMS = int(os.environ.get("RT_DRAMA3_FUZZ", "1000")) // 4
SEED = int(os.environ.get("RT_DRAMA3_FUZZ_SEED", "4"))
VOICES = 6  # that may be stored
TYPES = (
    "application/json; charset=utf-8", "application/msgpack", "application/x-msgpack", "",
    "text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded",
    "audio/wav", "audio/", "application/octet-stream", "\xff/\xfe; =;", "application/json" * 40,
)  # fmt: skip
FORM = (
    b"--x\r\nContent-Disposition: form-data; name=text\r\n\r\nHello.\r\n"
    b'--x\r\nContent-Disposition: form-data; name=audio; filename="a"\r\n\r\nRIFF\r\n--x--\r\n'
)


def clips() -> st.SearchStrategy[Any]:
    """Bodies of POST /v1/voices, which has no schema."""
    audio = st.sampled_from([*sounds(), *ODD]) | st.binary(max_size=40)
    clip = st.fixed_dictionaries({"text": TEXT, "audio": audio})
    name = st.sampled_from(["anna", "../x", "a/b", "é", "x" * 200, *ODD]) | st.text(max_size=5)
    return st.fixed_dictionaries(
        {"name": name}, optional={"text": TEXT, "audio": audio, "references": st.lists(clip)}
    )


ROUTES = {
    "/v1/tts": (bodies("fish_request"), "fish_error"),
    "/v1/audio/speech": (bodies("openai_request"), "openai_error"),
    "/v1/voices": (clips(), "fish_error"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("fuzz")
    with serving(ending_drama(), folder, max_voices=VOICES) as found:
        yield found


def as_json(value: Any) -> bytes:
    def odd(value: object) -> str:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    return json.dumps(value, default=odd, ensure_ascii=False).encode("utf-8", "surrogatepass")


def request(value: Any, rng: random.Random) -> tuple[bytes, str]:
    """A body and its type: often right, else wrong in one of many ways."""
    if rng.random() < 0.3:
        value = changed(value, rng)
    binary = rng.random() < 0.4
    body = packed(value) if binary else as_json(value)
    kind = "application/msgpack" if binary else "application/json"
    match rng.randrange(8):
        case 0:
            body = broken(body, rng)
        case 1:
            kind = rng.choice(TYPES)
        case 2 if rng.random() < 0.5:
            body, kind = FORM, "multipart/form-data; boundary=x"
        case 3 if rng.random() < 0.3:
            body = rng.choice([b"", b"[" * 50_000, b'{"a":' * 2_000, b"1" * 5_000, b"\xdf\xff"])
    return body, kind


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_any_body_is_answered(place: Place, route: str) -> None:
    strategy, shape = ROUTES[route]
    rng, statuses = random.Random(f"{SEED} {route}"), Counter[int]()
    values = drawn(strategy, min(ITEMS, 500), SEED)
    with httpx.Client(base_url=place.url, timeout=WAIT) as client:
        for _ in range(ITEMS):
            body, kind = request(rng.choice(values), rng)
            headers = {b"Content-Type": kind.encode("latin-1"), b"X-Request-Id": b"mine"}
            if rng.random() < 0.1:
                headers[b"X-Request-Id"] = rng.choice([b"", b"\xff", b"a b", b"x" * 999])
                headers[b"Model"] = b"\xfc" * 99
            query = {}
            if route == "/v1/voices" and kind.startswith(("audio/", "application/octet")):
                query = {"name": rng.choice(["anna", "", "%ff", "x" * 300]), "text": "A."}
                body = rng.choice(sounds()) if rng.random() < 0.5 else body
            answer = client.post(route, content=body, headers=headers, params=query)
            statuses[answer.status_code] += 1
            try:
                right(answer, shape)
            except Exception as problem:
                raise AssertionError(f"seed {SEED}: {kind!r} {body!r}") from problem
    place.until_free()
    assert place.metric("errors_total", code="internal") == 0
    assert len(place.service.voices.all()) <= VOICES
    assert min(statuses) in (200, 201)
    assert statuses[400] > 0


def right(answer: httpx.Response, shape: str) -> None:
    """Fails unless the answer is one that docs/protocol.md or docs/server.md describes."""
    assert answer.headers["x-request-id"]
    if answer.status_code == 201:
        assert answer.json()["object"] == "voice"
    elif answer.status_code == 200:
        kind = answer.headers["content-type"]
        assert kind.startswith(("audio/", "text/event-stream"))
        if kind == "text/event-stream":
            assert sse_events(answer.text)[-1]["type"] == "speech.audio.done"
        elif kind.startswith("audio/pcm"):
            assert len(answer.content) % 2 == 0
    else:
        assert 400 <= answer.status_code < 500, answer.text
        body = answer.json()
        check(body, "http", shape)
        details = body.get("error", body)
        assert details["request_id"] == answer.headers["x-request-id"]


def test_paths_and_methods(place: Place) -> None:
    paths = (
        "/v1/voices/", "/v1/voices/%ff", "/v1/voices/a%00", "/v1/voices/..%2f..%2fx", "/v1//tts",
        "/%e2%28%a1", "/v1/voices/" + "x" * 5_000, "/v1/tts/", "/v1/stream",
    )  # fmt: skip
    with httpx.Client(base_url=place.url, timeout=WAIT) as client:
        for path in paths:
            for method in ("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"):
                answer = client.request(method, path)
                assert answer.status_code in (307, *range(400, 500)), (method, path)
                if answer.status_code >= 400 and method != "HEAD":
                    assert answer.json()["code"]
