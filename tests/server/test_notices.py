"""Notices for text that the model cannot read, and for what normalisation leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

import rt_drama3
from rt_drama3.drama3 import Drama3
from rt_drama3.server.notices import UNKNOWN_SCRIPT, normalization_notices
from rt_drama3.server.openings import NO_WORDS, is_unreadable
from tests.server.tools import Place, serving
from tests.small import ending_drama, shared_drama

NANO = Path(rt_drama3.__file__).parent / "voices" / "nano" / "tokenizer.json"


@pytest.mark.parametrize(
    ("text", "unreadable"),
    [
        ("\u4f60\u597d\uff0c\u4e16\u754c", True),
        ("\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440.", True),
        ("Hello there.", False),
        ("Say \u4f60\u597d to everyone.", False),
        ("Gr\u00fc\u00dfe aus M\u00fcnchen", False),
        ("<|speaker:0|> [slowly, as if half asleep] Hi.", False),
        ("\N{GRINNING FACE}", False),
        ("", False),
    ],
)
def test_the_nano_voice_reads_latin_letters(text: str, unreadable: bool) -> None:
    assert is_unreadable(text, Tokenizer.from_file(str(NANO))) == unreadable


def test_what_is_not_spoken_is_noticed() -> None:
    tokenizer = Tokenizer.from_file(str(NANO))
    text = "[fast] Hi [laughs], see [1] and [the manual](https://a.example)."
    assert normalization_notices(text, tokenizer) == [
        "[1] is not spoken.",
        "[laughs] is not spoken: this model does not know it.",
    ]
    assert normalization_notices("[l\u00e4cheln\n] a", tokenizer)[0].isascii()
    assert len(normalization_notices("[" + "x" * 1000 + "] a", tokenizer)[0]) == 160


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("Say \u4f60\u597d to everyone.", True),
        ("He said \u041f\u0440\u0438\u0432\u0435\u0442 and left.", True),
        ("The word \u03bb\u03cc\u03b3\u03bf\u03c2 is Greek.", True),
        ("\u03c0 is near 3.14, \u03a9 is a unit and 5 \u03bcm is short.", False),
        ("Gr\u00fc\u00dfe aus \u0141\u00f3d\u017a", False),
        ("\uff28\uff45\uff4c\uff4c\uff4f \u216b", False),
    ],
)
def test_words_of_other_scripts_are_noticed(text: str, unknown: bool) -> None:
    notices = normalization_notices(text, Tokenizer.from_file(str(NANO)))
    assert notices == [UNKNOWN_SCRIPT] * unknown


def test_a_tokenizer_of_bytes_reads_everything() -> None:
    assert not is_unreadable("\u4f60\u597d", shared_drama().prompts.tokenizer)


# Directions alone, to a voice of words.


def test_text_of_directions_alone_ends_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drama = ending_drama()
    monkeypatch.setattr(drama.prompts, "normalizes", True)
    with serving(drama, tmp_path) as place:
        opened = []
        monkeypatch.setattr(place.engine, "open", opened.append)
        for text in ("[whispering] " * 3000, "[fast] " * 30_000):
            answer = place.post("/v1/tts", json={"text": text, "format": "wav"})
            assert answer.status_code == 200
            assert NO_WORDS in answer.headers["x-notice"]
            assert len(answer.content) == 44 + 2 * 441  # 10 ms
            with place.native() as client:
                client.send("start", text=text[:56_000], final=True)
                ready, *_, done = client.take_until("done")
                assert NO_WORDS in ready["notices"]
                assert done["frames"] == 0
        assert opened == []


def test_streamed_directions_hold_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drama = ending_drama()
    monkeypatch.setattr(drama.prompts, "normalizes", True)
    one = {"max_streams": 1, "max_queue": 0}
    with serving(drama, tmp_path, one) as place, place.native() as client:
        client.send("start", text="")
        for _ in range(20):
            client.send("text", text="[whispering] ")
        assert client.take()["type"] == "ready"
        assert place.post("/v1/tts", json={"text": "Hi."}).status_code == 200
        client.send("finish")
        assert client.take_until("done")[-1]["frames"] == 0


def test_a_sound_alone_is_spoken_where_directions_sound(ending: Place) -> None:
    answer = ending.post("/v1/tts", json={"text": "[laughs]", "format": "wav"})
    assert "x-notice" not in answer.headers
    assert len(answer.content) > 44 + 2 * 441


def test_notices_of_what_is_not_spoken_reach_every_client(nano: Drama3, tmp_path: Path) -> None:
    text = "Hi, see [1]."
    notice = "[1] is not spoken."
    with serving(nano, tmp_path) as place:
        openai = {"input": text, "response_format": "pcm", "max_seconds": 0.1}
        fish = {"text": text, "format": "pcm", "max_seconds": 0.1}
        for path, body in (("/v1/audio/speech", openai), ("/v1/tts", fish)):
            heard = place.post(path, json=body)
            assert (heard.status_code, heard.headers.get("X-Notice")) == (200, notice)
            quiet = place.post(path, json={**body, "normalize": "off"})
            assert (quiet.status_code, quiet.headers.get("X-Notice")) == (200, None)
        with place.native() as client:
            client.send("start", text=text, final=True, max_seconds=0.1)
            assert client.take()["notices"] == [notice]
            client.take_until("done")


def test_notices_of_streamed_text(nano: Drama3, tmp_path: Path) -> None:
    """Of text without a word, too, and each once."""
    texts = ["Hi, see [1]. ", "Again, [1]. ", "<jump/>\n\n"]
    expected = ["[1] is not spoken.", "the tag <jump> is unknown and not spoken."]
    with serving(nano, tmp_path) as place:
        with place.native() as client:
            client.send("start", text="", max_seconds=0.2)
            for text in texts:
                client.send("text", text=text)
            client.send("finish")
            ready, *heard = client.take_until("done")
            assert ready["notices"] == []
            assert sorted(one["text"] for one in heard if one["type"] == "notice") == expected
            assert heard[0]["type"] == "notice"  # before the segment that it speaks of
        with place.fish() as client:
            client.send("start", request={"text": "", "format": "pcm", "max_seconds": 0.2})
            for text in texts:
                client.send("text", text=text)
            client.send("stop")
            heard = client.take_until("finish")
            assert sorted(one["message"] for one in heard if one["event"] == "warning") == expected


def test_notices_of_streamed_text_are_bounded(nano: Drama3, tmp_path: Path) -> None:
    with serving(nano, tmp_path) as place, place.native() as client:
        client.send("start", text="", max_seconds=0.2)
        client.send("text", text="".join(f"Hi <a{n}/>. " for n in range(300)))
        client.send("finish")
        heard = [one["type"] for one in client.take_until("done")]
        assert 0 < heard.count("notice") < 30
