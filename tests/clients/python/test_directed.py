"""Directions and earlier takes through the client are what the engine makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.scenes.steering import Steering
from rt_drama3.scenes.takes import PreviousTake
from rt_drama3_client import Client, ServerError, Take
from rt_drama3_client.cli import main
from tests.server.tools import Place, serving
from tests.small import Codes, heard, shared_drama

DIRECTED = "[angry] Leave the house now."


def codes_of(take: Take) -> Codes:
    codes = np.frombuffer(take.vq_codes, "<u2").reshape(take.num_codebooks, take.frames)
    return codes.astype(np.int64)


def take_of(client: Client, text: str, **options: Any) -> Take:
    """The take of an utterance."""
    speech = client.speak(text, take=True, **options)
    speech.read()
    assert speech.done is not None
    assert speech.ready is not None
    assert speech.ready.ignored == ()
    assert speech.done.take is not None
    return speech.done.take


def spoken(place: Place, text: str, **more: Any) -> Codes:
    """What the engine behind a server says."""
    assert place.engine is not None
    return heard(place.engine.open(SpeechRequest(text, **more)))[1].codes


def test_scene_continues_a_take(ending: Place) -> None:
    with Client(ending.url) as client:
        first = take_of(client, "Who is there?", seed=3)
        assert first.text == "Who is there?"
        assert first.family
        assert first.schema
        kept = PreviousTake(first.text, codes_of(first))
        expected = spoken(ending, "It is me.", seed=4, previous_takes=[kept])
        assert not np.array_equal(expected, spoken(ending, "It is me.", seed=4))
        grid = codes_of(first).tolist()
        artefact = {"family": first.family, "schema": first.schema, "seed": 3, "complete": True}
        for one in (
            first,
            {"text": first.text, "vq_codes": first.vq_codes},
            {**artefact, "text": first.text, "codes": grid},
        ):
            found = take_of(client, "It is me.", seed=4, previous_takes=[one])
            assert np.array_equal(codes_of(found), expected)


def test_take_of_another_family_raises(ending: Place) -> None:
    take = Take(3, 1, bytes(6), "Who?", "somebody_else", "drama3_take_v1")
    with Client(ending.url) as client, pytest.raises(ServerError, match="somebody_else") as found:
        client.speak("It is me.", previous_takes=[take]).read()
    assert found.value.code == "bad_reference"


def test_guidance(ending: Place) -> None:
    with Client(ending.url) as client:
        guided = codes_of(take_of(client, DIRECTED, seed=3, guidance=4))
    assert np.array_equal(guided, spoken(ending, DIRECTED, seed=3, guidance=4))
    assert not np.array_equal(guided, spoken(ending, DIRECTED, seed=3))


def test_references_with_speakers_and_codes(ending: Place) -> None:
    with Client(ending.url) as client:
        clip = take_of(client, "Who is there?", seed=3)
        found: list[Codes] = []
        for text, more in (("Who is there?", {"speaker": 3}), ("<|speaker:3|> Who is there?", {})):
            reference: Any = {"text": text, "vq_codes": codes_of(clip).tolist(), **more}
            found.append(codes_of(take_of(client, "It is me.", seed=4, references=[reference])))
        plain: Any = {"text": "Who is there?", "vq_codes": clip.vq_codes}
        found.append(codes_of(take_of(client, "It is me.", seed=4, references=[plain])))
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_steering(tmp_path: Path) -> None:
    drama = shared_drama()
    numbers = torch.randn(
        drama.config.backbone.hidden_size, generator=torch.Generator().manual_seed(1)
    )
    before = drama.steering.folder
    vector = Steering("glad", 0, numbers, drama.steering.fingerprint)
    vector.save(tmp_path / "steering" / "glad.safetensors")
    try:
        with serving(drama, tmp_path) as place, Client(place.url) as client:

            def take(*steering: tuple[str, float]) -> Take:
                return take_of(client, "Hello.", steering=steering, seed=4, max_seconds=0.3)

            plain, off, on = take(), take(("glad", 0)), take(("glad", 20), ("glad", 10))
            assert off == plain
            assert on != plain
    finally:
        drama.steering.folder = before


def test_command(ending: Place, tmp_path: Path) -> None:
    guided, plain, same = (tmp_path / f"{name}.pcm" for name in ("guided", "plain", "same"))
    usual = [DIRECTED, "--url", ending.url, "--seed", "3"]
    assert main([*usual, "--out", str(guided), "--guidance", "4"]) == 0
    assert main([*usual, "--out", str(plain)]) == 0
    with Client(ending.url) as client:
        client.speak(DIRECTED, seed=3, guidance=4).save(same)
    assert guided.read_bytes() == same.read_bytes() != plain.read_bytes()


@pytest.mark.parametrize("given", ["excited", "=1", "excited=much"])
def test_invalid_steering_raises(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["Hello.", "--steer", given])
    assert leaving.value.code == 2
    assert "NAME=STRENGTH" in capsys.readouterr().err


def test_unknown_vector_raises(
    ending: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = str(tmp_path / "x.wav")
    assert main(["Hello.", "--url", ending.url, "--steer", "missing=1", "--out", out]) == 1
    assert "missing" in capsys.readouterr().err
