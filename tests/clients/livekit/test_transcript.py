"""Timed strings, joined, are the text as it was written, whatever the server makes of it."""

from __future__ import annotations

from tests.clients.livekit.tools import rtdrama3

from livekit.plugins.rtdrama3.transcript import Transcript  # isort: skip - tools has looked

assert rtdrama3


def test_white_space_of_the_text_is_kept() -> None:
    transcript = Transcript(1000)
    transcript.write(" One.\n")
    marks = [transcript.hear("One.", 0)]
    transcript.write("  Two. Three")
    marks += [transcript.hear("Two.", 500), transcript.hear("Three", 1000), transcript.end(1500)]
    assert [str(mark) for mark in marks] == [" One.", "\n  Two.", " Three", ""]
    assert [mark.start_time for mark in marks] == [0.0, 0.5, 1.0, 1.5]


def test_segment_that_is_not_in_the_text() -> None:
    transcript = Transcript(1000)
    transcript.write("<whisper>One. Two.</whisper> Three.")
    marks = [
        transcript.hear("<whisper>One.</whisper>", 0),
        transcript.hear("<whisper>Two.</whisper>", 500),
        transcript.hear("Three.", 900),
    ]
    assert [str(mark) for mark in marks][:2] == [
        "<whisper>One.</whisper>",
        " <whisper>Two.</whisper>",
    ]
    assert str(marks[2]).endswith("Three.")


def test_line_breaks_are_kept() -> None:
    """In the server's segments they are spaces."""
    transcript = Transcript(1000)
    transcript.write("Dear Anna,\nyour order  arrives.\n\nYours, Bert")
    marks = [transcript.hear("Dear Anna, your order  arrives.", 0)]
    marks += [transcript.hear("Yours, Bert", 500)]
    assert [str(m) for m in marks] == ["Dear Anna,\nyour order  arrives.", "\n\nYours, Bert"]
