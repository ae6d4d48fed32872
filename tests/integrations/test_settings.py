"""The table of docs/integrations/README.md: clients' settings do what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.tools import SENTENCE, Watched
from tests.server.tools import Place, audio_of

PAGE = Path(__file__).parents[2] / "docs" / "integrations" / "README.md"
ROW = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \| (\w+)(.*?) \|$", re.MULTILINE)
SECTION = PAGE.read_text(encoding="utf-8").split("## How settings are handled")[1]
ROWS = [row for row in ROW.findall(SECTION.split("\n## ")[0]) if row[0] != "setting"]
FISH = {"text": SENTENCE, "format": "pcm", "seed": 48}
OPENAI = {"input": SENTENCE, "response_format": "pcm", "seed": 48}
PAIR = ("`temperature`, `top_p`", "0.7 and 0.7")
# What shows only in a format of its own.
OF_FORMAT = {"mp3_bitrate": "mp3", "opus_bitrate": "opus"}


def value_of(written: str) -> Any:
    """A cell as JSON; backquotes hold strings."""
    match = re.fullmatch(r"`(.*)`", written)
    return match[1] if match else json.loads(written)


def asked(setting: str, written: str) -> dict[str, Any]:
    """The fields that a row of the table speaks of."""
    if (setting, written) == PAIR:
        return {"temperature": 0.7, "top_p": 0.7}
    outer, _, inner = setting.strip("`").partition(".")
    value = value_of(written)
    return {outer: {inner: value} if inner else value}


def spoken(place: Place, fields: dict[str, Any], headers: dict[str, str], openai: bool) -> Any:
    path, base = ("/v1/audio/speech", OPENAI) if openai else ("/v1/tts", FISH)
    answer = place.post(path, json={**base, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(
    ("setting", "written", "by", "verdict", "more"), ROWS, ids=[f"{r[0]}={r[1]}" for r in ROWS]
)
def test_row(setting: str, written: str, by: str, verdict: str, more: str, server: Watched) -> None:
    place, openai = server.place, by == "`openai`"
    headers, fields = {}, {}
    if setting.startswith("header"):
        headers = {"model": written.strip("`")}
    else:
        fields = asked(setting, written)
    kind = OF_FORMAT.get(setting.strip("`"))
    extra: dict[str, Any] = {"format": kind} if kind else {}
    if setting == "`latency`":
        extra["sample_rate"] = 16_000  # else nothing is resampled
    plain = spoken(place, extra, {}, openai).content
    answer = spoken(place, {**extra, **fields}, headers, openai)
    request = server.speeches[-1].request
    same = len(answer.content) == len(plain) if kind == "opus" else answer.content == plain
    if verdict in ("ignored", "mapped"):
        assert same
        assert (request.temperature, request.top_p) == (None, None)
    else:
        assert verdict == "honoured"
        default = (setting.strip("`"), value_of(written)) in (
            ("mp3_bitrate", 128),
            ("latency", "balanced"),
            ("references", []),
            ("opus_bitrate", 64_000),
        )
        assert same == default
    notice = answer.headers.get("x-notice", "")
    assert bool(notice) == ("with a" in more), notice


@pytest.mark.parametrize(("bits", "kilobits"), [(64_000, 64), (24_000, 24)])
def test_opus_bit_rates_in_either_unit(bits: int, kilobits: int, server: Watched) -> None:
    sizes = [
        len(spoken(server.place, {"format": "opus", "opus_bitrate": rate}, {}, False).content)
        for rate in (bits, kilobits)
    ]
    assert sizes[0] == sizes[1]


def test_unknown_fields_over_the_socket(server: Watched) -> None:
    with server.place.fish(additional_headers={"model": "s2.1-pro", "developer-id": "x"}) as client:
        strange = {"features": ["quality-guard"], "future": {"deep": [1, 2]}, "prosody": None}
        client.send("start", request={**FISH, **strange, "text": ""}, unknown=1)
        client.send("text", text=SENTENCE, lang="en")
        client.send("stop")
        messages = client.take_until("finish")
    assert messages[-1]["reason"] == "stop"
    assert audio_of(messages) == spoken(server.place, {}, {}, False).content


def test_the_table_has_every_field_that_the_packages_send() -> None:
    fishaudio = pytest.importorskip("fishaudio", reason="needs the package fish-audio-sdk")
    named = {name for row in ROWS for name in re.findall(r"`([a-z_0-9]+)", row[0])}
    sent = set(fishaudio.types.TTSRequest.model_fields) - {"text"}
    assert sent <= named, sent - named


def test_the_table_has_every_field_that_livekit_sends() -> None:
    plugin = pytest.importorskip(
        "livekit.plugins.fishaudio.tts",
        reason="needs livekit-plugins-fishaudio",
        exc_type=ImportError,
    )
    sent = set(plugin._build_tts_request(plugin.TTS(api_key="any")._opts)) - {"text"}
    named = {name for row in ROWS for name in re.findall(r"`([a-z_0-9]+)", row[0])}
    assert sent <= named, sent - named
