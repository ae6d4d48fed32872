"""Which voice speaks for a name: a stored one, an alias of it, the default one, or none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rt_drama3 import Drama3
from rt_drama3.errors import ConfigError
from rt_drama3.protocol import Refused
from rt_drama3.protocol.order import is_stock_voice
from rt_drama3.server.config import ServerConfig, read_server_config
from rt_drama3.server.references.voice_choice import choose_voices
from rt_drama3.server.references.voice_files import Voice, write_voice
from tests.server.tools import Place, serving
from tests.small import ending_drama

CLOUD = "a0e99841-438c-4a64-b679-ae501e7d6091"


def voice(name: str) -> Voice:
    return Voice(name, ("Hm.",), 1.0, 1, 44_100, 0)


STORED = {name: voice(name) for name in ("anna", "ben", "alloy2")}


def chosen(
    *names: str, aliases: dict[str, str] | None = None, default: bool = False
) -> tuple[list[tuple[int, str]], list[str]]:
    found, notices = choose_voices(names, STORED.get, aliases or {}, default)
    return [(speaker, one.name) for speaker, one in found], notices


def test_stored_voices_are_chosen_in_order() -> None:
    assert chosen("ben", "anna") == ([(0, "ben"), (1, "anna")], [])
    assert chosen() == ([], [])


def test_an_unknown_voice_is_refused_or_spoken_by_the_default_one() -> None:
    with pytest.raises(Refused, match="voice 'x' is not stored here") as error:
        chosen("x")
    assert error.value.code == "unknown_voice"
    notice = "voice 'x' is not stored here: the default voice speaks."
    assert chosen("x", default=True) == ([], [notice])
    assert chosen("x", "ben", default=True) == ([(1, "ben")], [notice])


def test_aliases_stand_for_stored_voices_and_for_the_default_one() -> None:
    aliases = {CLOUD: "anna", "alloy": "ben", "mine": "", "anna": "ben", "lost": "gone"}
    assert chosen(CLOUD, aliases=aliases) == ([(0, "anna")], [])
    assert chosen("alloy", aliases=aliases) == ([(0, "ben")], [])
    assert chosen("anna", aliases=aliases) == ([(0, "ben")], [])
    assert chosen("mine", aliases=aliases) == ([], [])
    with pytest.raises(Refused, match=r"voice 'lost' \(an alias of 'gone'\) is not stored"):
        chosen("lost", aliases=aliases)


@pytest.mark.parametrize("name", ["alloy", "Alloy", "NOVA", "933563129e564b19a115bedd57b7406a"])
def test_names_that_clients_send_unasked_mean_the_default_voice(name: str) -> None:
    assert is_stock_voice(name)
    assert chosen(name) == ([], [])
    with pytest.raises(Refused):  # of several speakers, each was chosen
        chosen(name, "anna")


def test_a_stored_voice_wins_over_a_stock_name_in_any_case() -> None:
    stored = {name: voice(name) for name in ("alloy", "Nova", "anna")}

    def spoken_by(name: str) -> str:
        ((_, found),), notices = choose_voices([name], stored.get, {}, False)
        assert notices == []
        return found.name

    assert spoken_by("Alloy") == "alloy"
    assert spoken_by("Nova") == "Nova"
    assert choose_voices(["nova"], stored.get, {}, False) == ([], [])
    with pytest.raises(Refused):
        spoken_by("Anna")
    assert not is_stock_voice("alloy2")


def test_settings(tmp_path: Path) -> None:
    assert ServerConfig().unknown_voice == "auto"
    path = tmp_path / "settings.toml"
    path.write_text(
        f'[server]\nunknown_voice = "error"\n[server.voice_aliases]\n"{CLOUD}" = "Anna 2"\nb = ""\n'
    )
    config = read_server_config(path, {})
    assert config.unknown_voice == "error"
    assert dict(config.voice_aliases) == {CLOUD: "Anna 2", "b": ""}
    there = {"RT_DRAMA3_SERVER_VOICE_ALIASES": "a = Anna 2, b=,", "RT_DRAMA3_SERVER_PORT": "1"}
    assert dict(read_server_config(path, there).voice_aliases) == {"a": "Anna 2", "b": ""}


@pytest.mark.parametrize(
    "settings",
    [
        {"unknown_voice": "silence"},
        {"voice_aliases": "anna"},
        {"voice_aliases": 5},
        {"voice_aliases": {"a": 5}},
        {"voice_aliases": {"a/b": "anna"}},
        {"voice_aliases": {"a": "../anna"}},
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"unknown_voice|voice_aliases"):
        read_server_config(environment={}, **settings)


# In every dialect.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A checkpoint with one fixed voice."""
    folder = tmp_path_factory.mktemp("fixed")
    write_voice(folder / "voices", voice("anna"))
    with serving(fixed_voice(), folder, voice_aliases={"theirs": "anna"}) as running:
        yield running


@cache
def fixed_voice() -> Drama3:
    drama: Drama3 = ending_drama.__wrapped__()  # a model of its own
    drama.references.fixed_voice = True
    return drama


def test_a_fixed_voice_speaks_for_unknown_names_with_a_notice(place: Place) -> None:
    wanted = f"voice '{CLOUD}' is not stored here: the default voice speaks."
    for path, body in (
        ("/v1/audio/speech", {"input": "Hi.", "voice": CLOUD, "response_format": "pcm"}),
        ("/v1/tts", {"text": "Hi.", "reference_id": CLOUD, "format": "pcm"}),
    ):
        answer = place.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert wanted in answer.headers["x-notice"]
    with place.native() as client:
        client.send("start", text="Hi.", final=True, voice=CLOUD)
        ready, *_, done = client.take_until("done", "error")
        assert (wanted in ready["notices"], ready["voice"], done["type"]) == (True, "", "done")
    with place.fish() as client:
        client.send("start", request={"text": "Hi.", "reference_id": CLOUD, "format": "pcm"})
        client.send("stop")
        assert client.take_until("finish")[-1]["reason"] == "stop"


def test_an_alias_is_the_stored_voice_in_every_dialect(place: Place) -> None:
    speech = {"input": "Hi.", "voice": "theirs"}
    answer = place.post("/v1/audio/speech", json=speech)
    assert "not stored" not in answer.headers["x-notice"]
    assert "fixed voice" in answer.headers["x-notice"]  # as for the stored voice
    answer = place.post("/v1/tts", json={"text": "Hi.", "reference_id": ["theirs", "anna"]})
    assert "not stored" not in answer.headers["x-notice"]
    with place.native() as client:
        client.send("start", text="Hi.", final=True, voice="theirs")
        assert client.take()["voice"] == "anna"


def test_without_a_fixed_voice_unknown_names_are_errors_unless_the_setting_says_so(
    tmp_path: Path, ending: Place
) -> None:
    body = {"text": "Hi.", "reference_id": CLOUD}
    assert ending.post("/v1/tts", json=body).json()["code"] == "unknown_voice"
    with serving(ending_drama(), tmp_path, unknown_voice="default") as place:
        assert place.post("/v1/tts", json=body).status_code == 200


def test_a_fixed_voice_refuses_unknown_names_where_the_setting_says_so(tmp_path: Path) -> None:
    with serving(fixed_voice(), tmp_path, unknown_voice="error") as place:
        body = {"text": "Hi.", "reference_id": CLOUD}
        assert place.post("/v1/tts", json=body).json()["code"] == "unknown_voice"
        assert place.post("/v1/tts", json={**body, "reference_id": "9" * 32}).status_code == 200
