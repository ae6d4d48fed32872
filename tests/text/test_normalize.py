"""Text normalisation: values read as written, structure, markup, idempotence, nothing lost."""
# ruff: noqa: E501, RUF001 - signs are the subject here, lists of them take long lines

from __future__ import annotations

import re
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import rt_drama3
from rt_drama3.text.normalize import keeps_speech, normalize, normalized
from rt_drama3.text.normalize.dates import roman
from rt_drama3.text.rules import has_speech, split_text

ONES = dict(
    zip(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ],
        range(20),
        strict=True,
    )
)
TENS = dict(
    zip(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"],
        range(20, 100, 10),
        strict=True,
    )
)
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def value(words: str) -> int:
    """The number that words name; raises KeyError for anything else."""
    total = group = 0
    for word in words.split():
        if word in SCALES:
            total, group = total + group * SCALES[word], 0
        elif word == "hundred":
            group *= 100
        else:
            group += {**ONES, **TENS}[word]
    return total + group


def say(text: str) -> str:
    return normalize(text).text


# --- numbers --------------------------------------------------------------------------------------

INTEGERS = st.one_of(
    st.integers(0, 10**12),
    st.integers(0, 12).map(lambda exponent: 10**exponent),
    st.tuples(st.integers(1, 999), st.integers(0, 9)).map(lambda pair: pair[0] * 10 ** pair[1]),
)


@given(INTEGERS)
@example(10**9)
@example(12_500_000_000)
@example(1_234_567_890)
@settings(max_examples=300, deadline=None)
def test_integers_with_separators_keep_their_value(number: int) -> None:
    if number < 1000:
        assert value(say(f"{number}")) == number
        return
    for separator in (",", "\xa0", "\u202f", "'", " "):
        assert value(say(f"{number:,}".replace(",", separator))) == number, separator


@given(INTEGERS, st.sampled_from("-−–"))
@settings(max_examples=100, deadline=None)
def test_negative_integers_keep_sign_and_value(number: int, sign: str) -> None:
    minus, _, words = say(f"{sign}{number:,}").partition(" ")
    assert minus == "minus"
    assert value(words) == number


@given(st.integers(0, 10**9), st.integers(0, 99), st.sampled_from(["$", "€", "£"]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_amounts_keep_their_value(units: int, cents: int, sign: str, behind: bool) -> None:
    number = f"{units:,}.{cents:02}"
    words = say(f"{number} {sign}" if behind else f"{sign}{number}")
    parts = dict((part.split()[-1], value(part.rsplit(" ", 1)[0])) for part in words.split(" and "))
    assert sum(n for unit, n in parts.items() if unit[:4] in ("doll", "euro", "poun")) == units
    assert sum(n for unit, n in parts.items() if unit[:4] in ("cent", "penc", "penn")) == cents


@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
@settings(max_examples=100, deadline=None)
def test_times_keep_hour_minute_and_second(hour: int, minute: int, second: int) -> None:
    words = say(f"{hour}:{minute:02}:{second:02}")
    clock, _, seconds = words.partition(" and ")
    assert (value(seconds.rsplit(" ", 1)[0]) if seconds else 0) == second
    parts = clock.replace(" o'clock", "").replace(" oh ", " zero ").split()
    assert any(
        value(" ".join(parts[:cut])) == hour and value(" ".join(parts[cut:])) == minute
        for cut in range(1, len(parts) + 1)
    )


@given(st.integers(0, 10**6), st.text("0123456789", min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_decimals_keep_every_digit(whole: int, behind: str) -> None:
    front, _, back = say(f"It is {whole:,}.{behind} m tall").partition(" point ")
    assert value(front.removeprefix("It is ")) == whole
    assert "".join(str(ONES[word]) for word in back.split()[:-2]) == behind


@given(st.integers(1, 9999))
@settings(max_examples=100, deadline=None)
def test_ordinals_are_those_of_their_numbers(number: int) -> None:
    from training.spelling import ordinal

    ends = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    ends = "th" if number % 100 in (11, 12, 13) else ends
    assert say(f"the {number}{ends} day") == f"the {ordinal(number)} day"


@given(st.dates())
@settings(max_examples=100, deadline=None)
def test_iso_dates_are_read(date: object) -> None:
    words = say(f"on {date} it")
    assert re.fullmatch(r"on [A-Z][a-z]+ [a-z ]+, [a-z ]+ it", words)


@given(st.text("0123456789.,:/-+%$€°'× ", max_size=20))
@settings(max_examples=300, deadline=None)
def test_no_digit_is_left_and_no_number_is_lost(text: str) -> None:
    words = say(text)
    assert not re.search(r"\d", words)
    assert bool(re.search(r"[a-z]", words)) or not re.search(r"\d", text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("−5", "minus five"),
        ("It is −5 degrees", "It is minus five degrees"),
        ("10:00:00", "ten o'clock"),
        ("12:00:30", "twelve o'clock and thirty seconds"),
        ("2026-12-01T10:00:00Z", "December first, twenty twenty six, ten o'clock U T C"),
        ("2024-05-12", "May twelfth, twenty twenty four"),
        ("€5m, $1M, £3bn", "five million euros, one million dollars, three billion pounds"),
        ("5 € and 1.234,56 €", "five euros and one thousand two hundred thirty four euros and "
         "fifty six cents"),
        ("-$5.05", "minus five dollars and five cents"),
        ("$5-$10", "five dollars to ten dollars"),
        ("₹10 ¥500 ₹1,00,000", "ten rupees five hundred yen one hundred thousand rupees"),
        ("10 000 people", "ten thousand people"),
        ("C# and C++", "C sharp and C plus plus"),
        ("a×b, 5 × 3, 3*4", "a times b, five times three, three times four"),
        ("10^3, x², e=mc²", "ten cubed, x squared, e equals mc squared"),
        ("±5", "plus or minus five"),
        ("≥5", "greater than or equal to five"),
        ("√2", "square root of two"),
        ("§5", "section five"),
        ("5'10\" tall", "five feet ten inches tall"),
        ("π is near", "pi is near"),
        ("w/o milk", "without milk"),
        ("e.g. this, i.e. that", "for example this, that is that"),
        ("pens, etc. Then sit.", "pens, et cetera. Then sit."),
        ("pens, etc. are", "pens, et cetera are"),
        ("3:30pm. Then", "three thirty p m. Then"),
        ("at 9 a.m. we", "at nine a m we"),
        ("3-5 days, 10–12 km", "three to five days, ten to twelve kilometers"),
        ("1/2, 3/4, 2 1/2, 2½", "one half, three quarters, two and one half, two and one half"),
        ("20°C, 45°, 5%", "twenty degrees Celsius, forty five degrees, five percent"),
        ("1 km, 2 kg, 90 km/h", "one kilometer, two kilograms, ninety kilometers per hour"),
        ("v1.5, 1.2.3", "version one point five, one point two point three"),
        ("192.168.0.1", "one nine two dot one six eight dot zero dot one"),
        ("+49 30 1234567", "plus four nine, three zero, one two three four five six seven"),
        ("(555) 123-4567", "five five five, one two three, four five six seven"),
        ("the 1990s, the '80s", "the nineteen nineties, the eighties"),
        ("Henry VIII, World War II", "Henry the eighth, World War two"),
        ("Chapter IV", "Chapter four"),
        ("an IV drip, the XX model", "an IV drip, the XX model"),
        ("GPT-4, COVID-19, H2O", "GPT four, COVID nineteen, H two O"),
        ("007 and 123456", "zero zero seven and one two three four five six"),
        ("10k users, 4K video", "ten thousand users, four K video"),
        ("16:9", "sixteen to nine"),
        ("No. 5", "number five"),
        ("1920x1080", "nineteen twenty by one thousand eighty"),
        ("me@example.com", "me at example dot com"),
        ("https://example.com/a?b=1", "example dot com slash a question mark b equals one"),
        ("$5/month", "five dollars per month"),
        ("€1,50 and 1,5 €", "one euro and fifty cents and one euro and fifty cents"),
        ("1.000.000 and 1_000_000", "one million and one million"),
        ("1.2.3 and 10.0.100.200", "one point two point three and one zero dot zero dot one zero "
         "zero dot two zero zero"),
        ("5-3=2", "five minus three equals two"),
        ("1..5", "one to five"),
        ("50¢", "fifty cents"),
        ("5 ⋅ 3", "five times three"),
        ("A ∪ B", "A union B"),
        ("∀ x", "for all x"),
        ("π ≈ 3.14", "pi approximately three point one four"),
        ("5 kΩ", "five kilo ohms"),
        ("5 μm, 10 µF", "five micrometers, ten microfarads"),
        ("❶ one", "one one"),
        ("CO₂", "CO two"),
        ("Straße, Łódź, Søren", "Strasse, Lódź, Soren"),
        ("－5, ＄5", "minus five, five dollars"),
        ("Smith vs. Mrs. Jones", "Smith versus Mrs. Jones"),
        ("ca. 1900", "circa nineteen hundred"),
        ("Gen. Lee of Acme Inc. said", "General Lee of Acme Incorporated said"),
        ("at Acme Inc. The firm", "at Acme Incorporated. The firm"),
        ("the next gen. is", "the next gen. is"),
    ],
)  # fmt: skip
def test_examples(text: str, words: str) -> None:
    assert normalize(text) == (words, ())


@pytest.mark.parametrize("kind", ["Sc", "Sm", "No", "Nl"])
def test_no_sign_between_numbers_vanishes(kind: str) -> None:
    nano = Path(rt_drama3.__file__).parent / "voices" / "nano" / "tokenizer.json"
    spoken = Tokenizer.from_file(str(nano)).normalizer.normalize_str

    def heard(text: str) -> str:
        return re.sub(r"[\s,.-]", "", spoken(normalize(text).text))

    nothing = {heard(f"It is {words} here") for words in ("five three", "fivethree")}
    signs = [chr(code) for code in range(0x80, 0x2300) if unicodedata.category(chr(code)) == kind]
    signs = [sign for sign in signs if float(unicodedata.numeric(sign, 0)).is_integer()]
    signs = [sign for sign in signs if not "\u22ee" <= sign <= "\u22f1"]  # dots: a pause
    assert [sign for sign in signs if heard(f"It is 5 {sign} 3 here") in nothing] == []


def test_roman_numerals() -> None:
    assert [roman(text) for text in ("II", "IV", "XIX", "XL", "LXXXIX")] == [2, 4, 19, 40, 89]
    assert [roman(text) for text in ("", "IIII", "VX", "IC", "XXXX")] == [None] * 5


# --- structure and markup -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Shopping list\nApples\nBananas\nOranges", "Shopping list. Apples. Bananas. Oranges"),
        ("A title\n\nThe first paragraph", "A title. The first paragraph"),
        ("This line is broken\nin the middle of it.", "This line is broken in the middle of it."),
        ("I went to the shop with\nJohn.", "I went to the shop with John."),
        ("# Title #\nText", "Title. Text"),
        ("Here is the list:\n- apples\n* pears", "Here is the list: apples. pears."),
        ("1. Apples\n2) Pears", "one, Apples. two, Pears."),
        ("- [ ] todo\n- [x] done", "todo. done."),
        ("> quoted *text*", "quoted text"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "a, b. one, two."),
        ("```python\nx = 1\n```", "x equals one"),
        ("a\n\n---\n\nb", "a. b"),
        ("See [the manual](https://example.com/a?b=1).", "See the manual."),
        ("![A cat](cat.png)", "A cat"),
        ("`code()`, **bold**, ~~old~~, _so_, __init__", "code(), bold, old, so, init"),
        ("snake_case", "snake underscore case"),
        ("array[0] = 1", "array zero equals one"),
        ("Tom &amp; Jerry", "Tom and Jerry"),
        ("it&#39;s", "it's"),
        ("&nbsp;Hi", "Hi"),
        ("a &lt;3 b", "a less than three b"),
        ("&amp;lt;b", "less than b"),
        ("a <b and c> d", "a less than b and c greater than d"),
        ("use List<String> here", "use List String here"),
        ("if (a<b && c>d)", "if (a less than b and c greater than d)"),
        ("x<y", "x less than y"),
        ("Write to <user@example.com> now.", "Write to user at example dot com now."),
        ('Wait <break time="1s"/> here.', "Wait. here."),
        ("<speak><p>One.</p><p>Two three</p></speak>", "One. Two three"),
        ('<say-as interpret-as="characters">AB1</say-as>', "A B one"),
        ('<say-as interpret-as="digits">123</say-as>', "one two three"),
        ('<sub alias="World Wide Web">WWW</sub>', "World Wide Web"),
        ("[laughs] Hi <whisper>you</whisper>", "[laughs] Hi <whisper>you</whisper>"),
        ("<|speaker:1|> Hi 5.\n<|speaker:2|> Yo", "<|speaker:1|> Hi five.\n<|speaker:2|> Yo"),
        ("Wait... what? Yes.", "Wait, what? Yes."),
        ("Well… I do not know.", "Well, I do not know."),
        ("Hmm... What?", "Hmm. What?"),
        ("No...", "No."),
        ("...and then", "and then"),
        ('Well... "I" do.', 'Well, "I" do.'),
        ('He said "well..." and left', 'He said "well." and left'),
        ("Well... (maybe) so", "Well, (maybe) so"),
        ("one, two, ⋯, ten", "one, two, ten"),
        ("a) one\nb) two", "a) one. b) two"),
    ],
)
def test_structure(text: str, words: str) -> None:
    assert normalize(text) == (words, ())


@pytest.mark.parametrize(
    ("text", "words", "notice"),
    [
        ("as said [1] and [2, 3].", "as said and.", "[1] is not spoken."),
        ("so[^note].", "so.", "[^note] is not spoken."),
        ('<prosody rate="slow">Hi</prosody>', "Hi", "<prosody> is not supported"),
        ("Hi<foo/>", "Hi", "<foo> is unknown"),
        ("![](cat.png) Hi", "Hi", "images without a description"),
        ("<!-- no --> Hi", "Hi", "comments"),
        ("[a]: http://x.y\nHi", "Hi", "link targets"),
        ('<break time="3s"/>Hi', "Hi", "longer ones"),
    ],
)
def test_what_is_not_spoken_is_noticed(text: str, words: str, notice: str) -> None:
    found = normalize(text)
    assert found.text == words
    assert any(notice in line for line in found.notices)


FRAGMENTS = st.sampled_from(
    [
        "word ", "Word ", "I ", "\n", "\n\n", " ", ". ", "... ", "…", "! ", ", ", "- ", "-", "5", "12",
        "1,000 ", "$", "€ ", "3.5", ":", "/", "%", "* ", "*", "**", "_", "`", "```", "#", "# ", "> ",
        "|", "[", "]", "[1]", "(", ")", "](", "![", "http://a.bc/d ", "a@b.cd ", "<", ">", "<b>",
        "</b>", "<p>", "<w>", "</w>", "<break/>", "&amp;", "&lt;", "&#91;", "&", "etc. ", "No. ",
        "p.m. ", "VIII", "Henry ", "x", "²", "½", "×", "±", "π", "°C", "∪", "⋅", "❶", "₂", "Ω", "μ", "ß", "¢", "vs. ", "Inc. ", "Gen. ", " km", "'", '"', "~", "^",
        "<|speaker:1|> ", "今天", "é", "\xa0", "1. ", "s", "th", "May ", "C#", "==", "--", "\v",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.lists(FRAGMENTS, max_size=16).map("".join), st.text(max_size=40))


@given(TEXTS)
@settings(max_examples=500, deadline=None)
def test_normalising_is_idempotent(text: str) -> None:
    once = normalize(text).text
    assert normalize(once).text == once


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_no_word_is_lost_silently(text: str) -> None:
    found = normalize(text)
    kept = [word for word in ("word", "Word") for _ in range(text.count(word))]
    if not found.notices and not re.search(r"\(|&|<|`", text):
        for word in set(kept):
            assert found.text.count(word) == text.count(word)


@given(st.lists(st.sampled_from(["Hello", "there,", "it's", "fine.", "Why?", "so-called"])))
@settings(max_examples=100, deadline=None)
def test_words_and_punctuation_are_unchanged(words: list[str]) -> None:
    text = " ".join(words)
    assert normalize(text) == (text, ())


@pytest.mark.parametrize(
    "unit",
    ["1", "1,", "1.", "a ", "[", "<", "<a ", "&amp;", "*", "_", "`", "- ", "1-", "1 ", "|", "\n", "…",
     "(", "![", "[a](", "x@", "a.", "http://", "#", "$", "1:", "-", "1/", "<b>", "</b>", "' ", "\v"],
)  # fmt: skip
def test_hostile_text_takes_linear_time(unit: str) -> None:
    def cost(count: int) -> float:
        started = time.thread_time()
        normalize(unit * count)
        return time.thread_time() - started

    cost(300)
    assert cost(6000) < 120 * max(min(cost(300) for _ in range(3)), 1e-3)


@pytest.mark.parametrize("tag", ["<break/>", "<foo/>", '<foo x="1"/>', "<br />", "<!-- x y -->"])
def test_tags_and_comments_are_not_cut_into_words(tag: str) -> None:
    assert not has_speech(3 * tag)
    assert split_text(500 * tag, 100) == []
    assert "".join(split_text(f"One{500 * tag}two", 100)).count(tag) > 0
    assert all(part.count("<") == part.count(">") for part in split_text(f"A{500 * tag}b", 101))


@settings(max_examples=2000, deadline=None)
@given(st.text(max_size=60).filter(lambda text: not re.search(r"[<\[`~&]", text)))
@example("12. 1/2 -- (c) 3*4*5 __ == 5'10\"")
@example("| a | b |")
def test_only_markup_can_be_left_out(text: str) -> None:
    assume(has_speech(text))
    assert keeps_speech(text)
    assert has_speech(normalized(text))
