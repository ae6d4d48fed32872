"""TextIntake: text as it arrives becomes pieces; what is refused changes nothing."""

from __future__ import annotations

import random
import threading
import time

import pytest

from rt_drama3.engine.text_intake import LONGEST_PENDING, LONGEST_SENTENCE, TextIntake
from rt_drama3.errors import RequestError
from rt_drama3.text.rules import SEGMENT_BYTES, split_text


def pieces(intake: TextIntake) -> list[str]:
    found = []
    while (piece := intake.take()) is not None:
        found.append(piece)
    return found


def pushed(*parts: str, finish: bool = True) -> list[str]:
    """Pieces of a text that arrives in parts."""
    intake = TextIntake()
    for part in parts:
        intake.push(part)
    if finish:
        intake.finish()
    return pieces(intake)


def words(text: str) -> list[str]:
    """A text as a language model gives it: word by word, spaces first."""
    first, *rest = text.split(" ")
    return [first, *(" " + word for word in rest)]


def test_a_whole_text_is_split_as_one() -> None:
    text = "One. Two. " * 60
    intake = TextIntake()
    assert intake.empty
    intake.set_whole(text)
    assert intake.final
    assert not intake.empty
    assert intake.count == len(split_text(text))
    assert pieces(intake) == split_text(text)
    assert intake.empty
    assert intake.count == len(split_text(text))  # also those given out


def test_sentences_are_pieces_once_the_next_begins() -> None:
    intake = TextIntake()
    for part in words("Hello there. How are"):
        intake.push(part)
    assert pieces(intake) == ["Hello there."]
    intake.push(" you?")
    assert pieces(intake) == []  # it may continue: you?!
    intake.push(" ")
    assert pieces(intake) == ["How are you?"]
    intake.finish()
    assert pieces(intake) == []


def test_flush_speaks_what_is_there() -> None:
    intake = TextIntake()
    intake.push("Hello")
    assert intake.empty
    intake.flush()
    intake.flush()
    assert pieces(intake) == ["Hello"]
    intake.push(" again")
    intake.finish()
    assert pieces(intake) == ["again"]


@pytest.mark.parametrize("text", ["", " ", "\n", "...", "\U0001f600", "<|speaker:1|>"])
def test_nothing_to_say_gives_no_piece(text: str) -> None:
    intake = TextIntake()
    intake.push(text)
    intake.flush()
    intake.push(text)
    intake.flush()
    intake.finish()
    assert pieces(intake) == []
    assert intake.count == 0


def test_finish_ends_the_text() -> None:
    intake = TextIntake()
    intake.push("Hello")
    intake.finish()
    assert intake.final
    with pytest.raises(RequestError, match="finished; open a new stream"):
        intake.push("more")
    with pytest.raises(RequestError, match="finished"):
        intake.push("")
    intake.finish()
    intake.flush()
    assert pieces(intake) == ["Hello"]


TEXT = (
    "Dr. Smith paid $3.50 at 10:30 a.m. for it... Really? Yes! [laughs] It was <b>very. good</b> "
    'indeed. "Quoted." Then he left,\nwithout a word. The end'
)


@pytest.mark.parametrize("seed", range(10))
def test_how_the_text_is_cut_on_its_way_does_not_matter(seed: int) -> None:
    rng, parts, rest = random.Random(seed), [], TEXT
    while rest:
        size = rng.randint(1, 12)
        parts.append(rest[:size])
        rest = rest[size:]
    spoken = " ".join(pushed(*parts))
    assert spoken.split() == TEXT.split()


# Speaker tags.


def test_a_speakers_later_sentences_keep_the_tag() -> None:
    assert pushed(*words("<|speaker:1|> One. Two. Three.")) == [
        "<|speaker:1|> One.",
        "<|speaker:1|> Two.",
        "<|speaker:1|> Three.",
    ]


def test_a_new_tag_changes_the_speaker() -> None:
    text = "<|speaker:1|> One. Two.\n<|speaker:2|> Three. Four."
    assert pushed(*text) == [
        "<|speaker:1|> One.",
        "<|speaker:1|> Two.",
        "<|speaker:2|> Three.",
        "<|speaker:2|> Four.",
    ]


def test_the_speaker_stays_over_a_flush() -> None:
    intake = TextIntake()
    intake.push("<|speaker:3|> Hello")
    intake.flush()
    intake.push("again")
    intake.finish()
    assert pieces(intake) == ["<|speaker:3|> Hello", "<|speaker:3|> again"]


def test_without_tags_none_are_added() -> None:
    assert pushed("One. ", "Two.") == ["One.", "Two."]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tags_may_arrive_in_parts(size: int) -> None:
    text = "<|speaker:1|> One. <|speaker:12|> Two."
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    assert " ".join(pushed(*parts)).split() == text.split()


@pytest.mark.parametrize("text", ["<|speaker:99|> Hi. ", "<|im_end|> ", "<|speaker> x. "])
def test_a_tag_that_is_none_is_refused_once_it_is_there(text: str) -> None:
    with pytest.raises(RequestError, match=r"<\|"):
        pushed(*text, *" " * 30)


def test_a_tag_that_never_ends_is_refused_at_the_end() -> None:
    intake = TextIntake()
    intake.push("Hello. <|speaker:1")
    assert pieces(intake) == ["Hello."]
    with pytest.raises(RequestError, match="not a speaker tag"):
        intake.finish()
    assert intake.final  # it ends all the same
    assert pieces(intake) == []


def test_the_segments_do_not_depend_on_how_the_text_arrives() -> None:
    text = "Dr. Who, etc. are fine. No. 5 is here. At 9 a.m. We go.\n- one\n- two\n\nThe end"
    whole = pushed(text)
    assert whole == [
        "Dr. Who, etc. are fine.",
        "No. 5 is here.",
        "At 9 a.m.",
        "We go.",
        "- one",
        "- two",
        "The end",
    ]
    for size in range(1, 9):
        assert pushed(*(text[i : i + size] for i in range(0, len(text), size))) == whole


def test_text_that_can_stand_alone_is_spoken_when_no_more_comes() -> None:
    intake = TextIntake()
    intake.push("We meet at 9")
    assert not intake.stands
    intake.push(" a.m. ")
    assert intake.stands
    assert intake.empty
    intake.speak_standing()
    assert not intake.stands
    assert pieces(intake) == ["We meet at 9 a.m."]
    intake.push("Or")
    intake.speak_standing()
    assert pieces(intake) == []


def test_a_sentence_has_begun_until_its_end_is_there() -> None:
    intake = TextIntake()
    assert not intake.begun
    for text, begun in (("Hello. ", False), ("And then", True), (" we. ", False)):
        intake.push(text)
        assert intake.begun is begun, text
    intake.push("More")
    intake.flush()
    assert not intake.begun


def test_the_pause_is_never_counted_from_older_text() -> None:
    """Another thread reads the time as soon as the text stands."""
    seen = []

    class Watched(TextIntake):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "stands" and value:
                seen.append(self.pushed)
            super().__setattr__(name, value)

    intake = Watched()
    intake.push("We meet at 9 a.m. ", 7.0)
    assert seen == [7.0]


# Normalisation: segments keep the text as it was written.


def normalizing(text: str, push: bool) -> list[str]:
    intake = TextIntake(normalizes=True)
    if push:
        intake.push(text)
        intake.finish()
    else:
        intake.set_whole(text)
    return pieces(intake)


@pytest.mark.parametrize("push", [False, True])
def test_lines_and_paragraphs_are_segments_where_text_is_normalised(push: bool) -> None:
    text = "# Title\n\nThis line wraps\nhere.\n\n- one [1]\n- $2\n\n---\n```python\nx = 1\n```"
    assert normalizing(text, push) == [
        "# Title", "This line wraps here.", "- one [1]", "- $2", "x = 1"
    ]  # fmt: skip


def test_a_text_without_words_once_normalised_has_no_segments() -> None:
    assert normalizing("[1]: https://example.com", False) == []


# Refusals.


@pytest.mark.parametrize("bad", ["<|im_start|>", "\ud83d", 3, None])
def test_a_refused_push_changes_nothing(bad: str) -> None:
    intake = TextIntake()
    intake.push("Hello ")
    with pytest.raises(RequestError):
        intake.push(bad)
    intake.push("there.")
    intake.finish()
    assert pieces(intake) == ["Hello there."]


def test_a_cue_that_no_piece_can_hold_does_not_poison_the_stream() -> None:
    intake = TextIntake()
    cue = "[" + "very " * 100 + "]"
    with pytest.raises(RequestError):
        intake.push(f"Hello {cue} there. And ")
    intake.push("Fine. ")
    assert pieces(intake) == ["Fine."]
    intake.push("Now [")
    with pytest.raises(RequestError):
        intake.push("very " * 100 + "] then. So")
    intake.push("ok] good.")
    intake.finish()
    assert pieces(intake) == ["Now [ok] good."]


# Text without an end.


def test_a_sentence_that_does_not_end_is_spoken_all_the_same() -> None:
    intake, said = TextIntake(), "and then he said that " * 200
    spoken: list[str] = []
    longest = 0
    for part in words(said):
        intake.push(part)
        longest = max(longest, len(intake._growing))
        spoken += pieces(intake)
    assert len(spoken) > 5
    assert longest <= LONGEST_SENTENCE + 10
    assert all(len(piece.encode()) <= SEGMENT_BYTES for piece in spoken)
    intake.finish()
    assert " ".join([*spoken, *pieces(intake)]).split() == said.split()


def test_a_long_turn_without_an_end_keeps_its_speaker() -> None:
    said = "<|speaker:4|> " + "no stop in sight " * 100
    spoken = pushed(*words(said))
    assert len(spoken) > 5
    assert all(piece.startswith("<|speaker:4|> ") for piece in spoken)
    assert "".join(spoken).count("sight") == 100


def test_text_that_is_pushed_for_hours_costs_the_same_every_time() -> None:
    """Each push reads the open sentence alone, never at everything before."""
    intake = TextIntake()
    part = "word " * 10

    def cost(rounds: int) -> float:
        started = time.thread_time()
        for _ in range(rounds):
            intake.push(part)
        return time.thread_time() - started

    cost(100)
    early = cost(200)
    cost(2000)
    assert cost(200) < 4 * early + 0.05


def test_too_much_waiting_text_is_refused() -> None:
    intake = TextIntake()
    sentence = "This is a sentence of some length, is it not? " * 1000
    for _ in range(LONGEST_PENDING // len(sentence) + 1):  # spaces between sentences are dropped
        intake.push(sentence)
    with pytest.raises(RequestError, match=f"more than {LONGEST_PENDING} characters wait"):
        intake.push(sentence)
    while not intake.empty:
        intake.take()
    intake.push(sentence)  # there is room again


# Threads.


def test_pushing_does_not_hold_up_who_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device thread asks at every turn, while a client's thread splits a long text."""
    from rt_drama3.engine import text_intake as module

    intake = TextIntake()
    intake.push("Ready. Set")
    entered, leave = threading.Event(), threading.Event()

    def slow(text: str, longest: int) -> list[str]:
        entered.set()
        assert leave.wait(20)
        return [text]

    monkeypatch.setattr(module, "split_text", slow)
    client = threading.Thread(target=intake.push, args=(". Go. ",))
    client.start()
    assert entered.wait(20)
    assert not intake.empty
    assert intake.take() == "Ready."
    assert intake.empty
    leave.set()
    client.join(20)
    assert not intake.empty


def test_nothing_that_was_accepted_is_lost_when_the_end_comes_from_elsewhere() -> None:
    for _ in range(30):
        intake, accepted = TextIntake(), list[str]()
        go = threading.Event()

        def push(intake: TextIntake, accepted: list[str], go: threading.Event) -> None:
            go.wait(20)
            for number in range(200):
                try:
                    intake.push(f"w{number} ")
                except RequestError:
                    return
                accepted.append(f"w{number}")

        client = threading.Thread(target=push, args=(intake, accepted, go))
        client.start()
        go.set()
        time.sleep(random.random() * 1e-3)
        intake.finish()
        client.join(20)
        assert " ".join(pieces(intake)).split() == accepted


# Directions without words.


def directed(text: str, *, sound: bool, normalizes: bool = False) -> list[str]:
    """Pieces of a text that arrives whole, and of one that arrives in parts: the same."""
    whole, parts = (TextIntake(True, 140, normalizes, sound) for _ in range(2))
    whole.set_whole(text)
    for at in range(0, len(text), 7):
        parts.push(text[at : at + 7])
    parts.finish()
    found = pieces(whole)
    assert sum(map(len, found)) >= sum(map(len, pieces(parts)))
    return found


@pytest.mark.parametrize("normalizes", [False, True])
def test_directions_alone_are_nothing_to_a_voice_of_words(normalizes: bool) -> None:
    for text in ("[whispering] " * 300, "[fast]", "<whisper>[x]</whisper>", "[fast] ... [slow]!"):
        assert directed(text, sound=False, normalizes=normalizes) == []
    found = directed("[fast] " * 60 + "Hello.", sound=False, normalizes=normalizes)
    assert [piece[-6:] for piece in found] == ["Hello."]


def test_of_directions_in_a_row_the_first_ones_sound() -> None:
    assert directed("[laughs]", sound=True) == ["[laughs]"]
    (piece,) = directed("[laughs] " * 3000, sound=True)
    assert piece == ("[laughs] " * 15).strip()
    found = directed("[laughs] " * 300 + "Hello. " * 40, sound=True)
    assert ["Hello." in piece for piece in found] == [False, True, True, True]
    assert sum(piece.count("Hello.") for piece in found) == 40


def test_directions_of_another_turn_sound_again() -> None:
    intake = TextIntake()
    for _ in range(3):
        intake.push("[laughs]")
        intake.flush()
    assert pieces(intake) == ["[laughs]"] * 3


def test_what_may_be_spoken_with_more_text() -> None:
    intake = TextIntake(directions_sound=False)
    assert not intake.can_be_spoken_with("[fast] ")
    assert not intake.can_be_spoken_with("[fas")
    assert not intake.can_be_spoken_with("...")
    assert intake.can_be_spoken_with("Hi")
    intake.push("[fas")
    assert not intake.can_be_spoken_with("t] ")
    assert intake.can_be_spoken_with("t] a")
    assert TextIntake().can_be_spoken_with("[laughs]")
