"""Text in deltas: nothing lost, nothing doubled, tokens whole, refusals about the right message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.errors import RequestError
from rt_drama3.protocol.limits import ProtocolLimits
from rt_drama3.protocol.refusals import Refused
from rt_drama3.protocol.text_buffer import TextBuffer
from rt_drama3.text.rules import check_part

LIMITS = ProtocolLimits()


def buffer(characters: int = 1_000) -> TextBuffer:
    return TextBuffer(replace(LIMITS, pending_characters=characters))


def test_a_token_in_parts_is_held_until_it_is_whole() -> None:
    text = buffer()
    assert text.push("Hi <") == "Hi "
    assert text.push("|speak") == ""
    assert text.push("er:1|") == ""
    assert text.push("> you") == "<|speaker:1|> you"
    assert text.push(" <|im_") == " "
    with pytest.raises(Refused, match=r"<\|im_end\|>") as caught:
        text.push("end|> now")
    assert caught.value.code == "bad_text"
    assert text.push("Good.") == "Good."  # what was refused left nothing behind


def test_what_was_held_is_lost_only_with_the_token_it_began() -> None:
    text = buffer()
    assert text.push("a <") == "a "
    with pytest.raises(Refused):
        text.push("|im_end|> b")
    assert text.push("c") == "c"
    assert text.push(" <") == " "
    with pytest.raises(Refused):
        text.push("3 <|im_end|>")
    assert text.push("3") == "<3"


def test_what_only_looks_like_a_token_passes() -> None:
    text = buffer()
    assert text.push("a <") == "a "
    assert text.push(" b") == "< b"
    assert text.push("<|") == ""
    assert text.push("x" * 33) == "<|" + "x" * 33
    assert text.push("2 <| 3") == "2 "
    assert text.flush() == "<| 3"


def test_a_flush_ends_the_wait() -> None:
    text = buffer()
    assert text.push("<|speaker:1") == ""
    assert text.unflushed
    with pytest.raises(Refused, match="not a speaker tag"):
        text.flush()
    assert text.flush() == ""
    assert text.push("Hi.") == "Hi."


def test_white_space_alone_needs_no_flush() -> None:
    text = buffer()
    assert text.push("") == ""
    assert text.push(" \n") == " \n"
    assert not text.unflushed
    text.push("Hi.")
    assert text.unflushed
    assert text.flush() == ""
    assert not text.unflushed


def test_waiting_text_is_bounded_and_room_comes_back() -> None:
    text = buffer(10)
    assert text.push("12345678")
    with pytest.raises(Refused, match=r"8 characters wait .* 3 more came; the limit is 10"):
        text.push("abc")
    assert text.push("ab") == "ab"
    with pytest.raises(Refused, match="10 characters wait") as caught:
        text.push("c")
    assert caught.value.code == "backlog_full"
    text.pending = 4
    assert text.push("<|") == ""
    with pytest.raises(Refused, match="4 characters wait"):  # what is held takes room, too
        text.push("abcde")
    text.flush()
    text.pending = 4
    assert text.push("abc") == "abc"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab <|>:1speakr\n", max_size=12), max_size=12))
def test_deltas_pass_whole_and_in_order(deltas: list[str]) -> None:
    text = buffer()
    whole = "".join(deltas)
    try:
        check_part(whole)
    except RequestError:
        with pytest.raises(Refused):
            _ = [text.push(delta) for delta in deltas], text.flush()
        return
    assert "".join([text.push(delta) for delta in deltas] + [text.flush()]) == whole
