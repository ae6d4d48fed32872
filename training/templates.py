"""Sentences as voice agents, announcements and everyday talk have them, from small grammars.

Everything is written out in words; numbers, names and addresses are drawn at random, so that a
hundred thousand different lines come out of a page of patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.spelling import ONES, cardinal, clock, digits, dollars, ordinal, year
from training.wordlists import (
    ADJECTIVES,
    CITIES,
    COUNTRIES,
    DAYS,
    DOMAINS,
    ENDINGS,
    ITEMS,
    LETTERS,
    MONTHS,
    NAMES,
    NOUNS,
    PLURALS,
    SURNAMES,
    VERBS,
)


class Phrases:
    """Draws phrases and sentences; one ``Random`` gives one series of them."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def pick(self, options: str | list[str]) -> str:
        """One of the options, which a string parts by ``|``."""
        return self.random.choice(options.split("|") if isinstance(options, str) else options)

    def count(self, low: int, high: int) -> str:
        return cardinal(self.random.randint(low, high))

    def spoken_digits(self, low: int, high: int) -> str:
        return digits("".join(self.random.choices("0123456789", k=self.random.randint(low, high))))

    def person(self) -> str:
        name = self.pick(NAMES)
        form = self.random.random()
        if form < 0.4:
            return name
        if form < 0.8:
            return f"{name} {self.pick(SURNAMES)}"
        return f"{self.pick('Mister|Misses|Miss|Doctor|Professor')} {self.pick(SURNAMES)}"

    def time(self) -> str:
        number = self.random.randint
        hour = number(1, 12)
        return self.pick(
            [
                clock(hour, number(0, 59)),
                clock(hour, number(0, 11) * 5),
                f"{cardinal(hour)} o'clock",
                f"half past {cardinal(hour)}",
                f"a quarter to {cardinal(hour)}",
                f"a quarter past {cardinal(hour)}",
            ]
        ) + self.pick("|| in the morning| in the evening| p m| a m| this afternoon| tonight")

    def date(self) -> str:
        day = ordinal(self.random.randint(1, 31))
        month, weekday = self.pick(MONTHS), self.pick(DAYS)
        return self.pick(
            [
                f"{month} {day}",
                f"the {day} of {month}",
                weekday,
                f"next {weekday}",
                f"{weekday}, {month} {day}",
                f"{month} {day}, {year(self.random.randint(1900, 2040))}",
                "tomorrow",
            ]
        )

    def price(self) -> str:
        number = self.random.randint
        return self.pick(
            [
                dollars(number(2, 999)),
                dollars(number(1, 99), number(1, 99)),
                dollars(number(1, 40), 99),
                f"{self.count(5, 500)} euros",
                f"{self.count(5, 300)} pounds",
                f"{self.count(1, 100)} percent",
                f"{self.count(1, 99)} thousand dollars",
                f"{self.count(2, 20)} point {ONES[number(1, 9)]} percent",
            ]
        )

    def email(self) -> str:
        name = self.pick(NAMES).lower()
        surname = self.pick(SURNAMES).lower()
        user = self.pick(
            [name, f"{name} dot {surname}", f"{name} {self.spoken_digits(1, 3)}", "info", "support"]
        )
        return f"{user} at {self.web()}"

    def web(self) -> str:
        host = f"{self.pick(DOMAINS)} dot {self.pick(ENDINGS)}"
        return self.pick([host, host, f"w w w dot {host}", f"{host} slash {self.pick(ITEMS)}s"])

    def letters(self) -> str:
        return " ".join(self.random.choices(LETTERS, k=self.random.randint(2, 4)))

    def number(self) -> str:
        high = self.pick(["20", "100", "1000", "10000", "1000000"])
        return self.count(0, int(high))

    def code(self) -> str:
        return self.pick(
            [
                self.spoken_digits(3, 6),
                f"{self.letters()} {self.spoken_digits(2, 4)}",
                f"{self.spoken_digits(3, 3)}, {self.spoken_digits(4, 4)}",
            ]
        )

    def sentence(self) -> str:
        """One sentence of any kind, with capital letter and end mark."""
        made = self.random.choice(_ALL)(self)
        return made[0].upper() + made[1:]


Pattern = Callable[[Phrases], str]


def _agent() -> list[Pattern]:
    return [
        lambda p: (
            f"Your {p.pick(ITEMS)} has shipped and should arrive {p.pick('on|by')} {p.date()}."
        ),
        lambda p: (
            f"Your {p.pick(ITEMS)} is on its way, and it will reach {p.pick(CITIES)} "
            f"{p.pick('today|tomorrow|this week|next week|soon')}."
        ),
        lambda p: (
            "Thank you for calling. How can I help you "
            f"{p.pick('today|this morning|this evening|tonight')}?"
        ),
        lambda p: (
            f"Hello {p.person()}, "
            + p.pick(
                "how are you today?|nice to meet you.|welcome back!|good to hear from you.|"
                "thanks for waiting.|what can I do for you?"
            )
        ),
        lambda p: (
            "I'm sorry, I did not "
            f"{p.pick('understand that|hear you|catch that|quite get that')}. Could you "
            f"{p.pick('please repeat|say it again|try again|rephrase that')}?"
        ),
        lambda p: f"Your appointment is at {p.time()} on {p.date()}.",
        lambda p: (
            f"The total comes to {p.price()}, "
            f"{p.pick('including tax|plus shipping|after the discount|due today')}."
        ),
        lambda p: (
            f"Your {p.pick('confirmation|tracking|access|order|booking')} "
            f"{p.pick('code|number')} is {p.code()}."
        ),
        lambda p: (
            f"Please hold while I {p.pick('check|look up|find|update|review')} "
            f"your {p.pick(ITEMS)}."
        ),
        lambda p: (
            f"I can {p.pick('help you with|see|confirm|cancel|change')} your "
            f"{p.pick(ITEMS)} {p.pick('right now|if you like|for you|without any problem')}."
        ),
        lambda p: (
            f"Would you like to {p.pick('schedule|cancel|confirm|track|return|review|pay for')}"
            f" the {p.pick(ITEMS)} {p.pick('now|today|tomorrow|right away')}?"
        ),
        lambda p: (
            f"You have {p.count(2, 40)} "
            f"{p.pick('new messages|unread emails|missed calls|open tasks|reminders')}."
        ),
        lambda p: f"Your {p.pick('balance|bill|last payment|deposit|refund')} is {p.price()}.",
        lambda p: (
            p.pick("Sure|Of course|Absolutely|Great|Okay|Alright|No problem|Perfect|Yes|Right")
            + ", "
            + p.pick(
                "let me check that for you.|I will take care of it.|one moment please.|"
                "here is what I found.|that is all set.|give me a second.|let me look into that.|"
                "I have updated your account.|I can do that.|thanks for letting me know."
            )
        ),
        lambda p: (
            p.pick("Good morning|Good afternoon|Good evening|Hi there|Welcome|Hello")
            + ", "
            + p.pick(
                f"this is {p.pick(NAMES)} speaking.|you have reached customer support.|"
                "thanks for joining us.|how may I direct your call?|how can I help?"
            )
        ),
        lambda p: (
            f"Press {p.pick(ONES[:10])} for "
            f"{p.pick('sales|support|billing|an operator|more options')}, or press "
            f"{p.pick(ONES[:10])} to {p.pick('repeat|go back|hear this again|speak to someone')}."
        ),
        lambda p: (
            f"If you {p.pick('need|want|would like|have')} {p.pick('more|any|some')} "
            f"{p.pick('help|questions|details|information|time')}, "
            f"{p.pick('just ask|let me know|please call us|send us an email|visit our website')}."
        ),
        lambda p: (
            f"Please {p.pick('enter|say|confirm|repeat')} the last {p.pick('three|four|five')} "
            f"digits of your {p.pick('phone number|account number|card|order number')}."
        ),
        lambda p: (
            f"You can {p.pick('reach|write to|email|contact')} "
            f"{p.pick('us|me|them|the team')} at {p.email()}."
        ),
        lambda p: (
            f"{p.pick('Visit|Go to|Please see|Open')} {p.web()} for "
            f"{p.pick('details|more information|the full list|help|a free trial')}."
        ),
        lambda p: (
            f"Call {p.spoken_digits(3, 3)}, {p.spoken_digits(3, 3)}, "
            f"{p.spoken_digits(4, 4)} "
            f"{p.pick('to confirm|for support|before noon|if you need help')}."
        ),
        lambda p: (
            f"I will {p.pick('transfer|connect|forward')} you to "
            f"{p.pick('an agent|a specialist|a colleague|the right team')} who can "
            f"{p.pick('answer that question|solve this problem|help you further')}."
        ),
        lambda p: (
            f"Can I have your {p.pick('name|email address|date of birth|zip code|order number')}"
            f"{p.pick(', please|| again|')}?"
        ),
        lambda p: (
            f"Your {p.pick('password|address|plan|order|profile')} was "
            f"{p.pick('changed|updated|confirmed|saved')} successfully, "
            f"{p.pick('no further action is needed|thank you for waiting|you are all set')}."
        ),
    ]


def _everyday() -> list[Pattern]:
    return [
        lambda p: (
            f"The weather in {p.pick(CITIES)} is "
            f"{p.pick('sunny|cloudy|rainy|windy|cold|warm|foggy|snowy')}, with a high of "
            f"{p.count(3, 99)} degrees."
        ),
        lambda p: (
            f"Turn {p.pick('left|right')} onto {p.pick(SURNAMES)} "
            f"{p.pick('Street|Avenue|Road|Lane')}, then continue for {p.count(2, 20)} "
            f"{p.pick('miles|minutes|blocks|kilometers')}."
        ),
        lambda p: (
            f"{p.person()} called at {p.time()} and "
            f"{p.pick('left a message|will call back|asked about the invoice|sends regards')}."
        ),
        lambda p: (
            f"The {p.pick('flight|train|bus')} to {p.pick(CITIES)} leaves from "
            f"{p.pick('gate|platform')} {p.count(1, 60)} at {p.time()}."
        ),
        lambda p: (
            f"The {p.pick(ADJECTIVES)} {p.pick(NOUNS)} {p.pick(VERBS)} the "
            f"{p.pick(ADJECTIVES)} {p.pick(NOUNS)}."
        ),
        lambda p: (
            f"A {p.pick(ADJECTIVES)} {p.pick(NOUNS)} "
            f"{p.pick('stood|waited|slept|appeared|turned up|was seen|fell|landed')} "
            f"{p.pick('near|behind|under|beside|in front of|on|over')} the {p.pick(NOUNS)}."
        ),
        lambda p: (
            f"{p.pick(NAMES)} {p.pick(VERBS)} the {p.pick(ADJECTIVES)} {p.pick(NOUNS)} "
            f"{p.pick('before|after|during')} "
            f"{p.pick('the storm|breakfast|the meeting|sunset|lunch|the long trip')}."
        ),
        lambda p: (
            f"We {p.pick(VERBS)} {p.count(2, 99)} {p.pick(ADJECTIVES)} {p.pick(PLURALS)} "
            f"{p.pick('yesterday|last week|in spring|two days ago|on Friday|in August')}."
        ),
        lambda p: f"Is the {p.pick(NOUNS)} {p.pick(ADJECTIVES)} or {p.pick(ADJECTIVES)}?",
        lambda p: (
            f"{p.pick('Where|Why|When|How')} did {p.pick(NAMES)} "
            f"{p.pick('put|find|buy|leave|fix|lose|break|paint')} the {p.pick(ADJECTIVES)} "
            f"{p.pick(NOUNS)}?"
        ),
        lambda p: (
            f"{p.pick('What|Which')} {p.pick(NOUNS)} do you "
            f"{p.pick('like best|remember|want to see|need|prefer')}?"
        ),
        lambda p: (
            f"{p.pick('Can|Could|Will|Would|Should|May')} {p.pick('you|we|I|they|she|he')} "
            f"{p.pick('bring|open|move|see|take|show me|find|share|use')} the {p.pick(NOUNS)} "
            f"{p.pick('now|later|today|before dinner|on ' + p.pick(DAYS))}?"
        ),
        lambda p: (
            f"It takes about {p.count(2, 59)} minutes to {p.pick('walk|drive|get|travel')} "
            f"from the {p.pick(NOUNS)} to the {p.pick(NOUNS)}."
        ),
        lambda p: f"{p.number()}, {p.number()}, {p.number()}, and {p.spoken_digits(2, 2)}.",
        lambda p: (
            f"{p.pick(NAMES)}, {p.pick(NAMES)}, and {p.pick(NAMES)} live in {p.pick(CITIES)}."
        ),
        lambda p: (
            f"My {p.pick('brother|sister|friend|cousin|uncle|neighbor')} "
            f"{p.pick('plays the|bought a|repairs the|has a')} {p.pick(ADJECTIVES)} "
            f"{p.pick(NOUNS)} "
            f"{p.pick('on weekends|every day|in his garage|at home|in ' + p.pick(COUNTRIES))}."
        ),
        lambda p: (
            f"In {year(p.random.randint(1700, 2030))}, {p.count(2, 900)} "
            f"{p.pick('people|students|families|workers|visitors')} "
            f"{p.pick('moved to|came to|left|visited')} {p.pick(COUNTRIES)}."
        ),
        lambda p: (
            f"The {p.pick(NOUNS)} costs {p.price()}, and the {p.pick(NOUNS)} costs {p.price()}."
        ),
        lambda p: (
            f"{p.person()} lives at {p.count(1, 2000)} {p.pick(SURNAMES)} "
            f"{p.pick('Street|Avenue|Road|Lane|Drive')}, {p.pick(CITIES)}."
        ),
        lambda p: (
            f"The {p.pick(NOUNS)} is {p.count(2, 900)} "
            f"{p.pick('meters|feet|miles|inches|kilometers')} {p.pick('long|wide|away|high|deep')}."
        ),
        lambda p: f"The meeting with {p.person()} was moved to {p.time()} on {p.date()}.",
        lambda p: (
            f"We {p.pick('should|must|could|can')} leave before {p.time()} if we want to "
            f"{p.pick('catch the train|be on time|see the show|miss the traffic')}."
        ),
        lambda p: (
            f"She {p.pick(VERBS)} the {p.pick(ADJECTIVES)} {p.pick(NOUNS)} and "
            f"{p.pick(VERBS)} a {p.pick(ADJECTIVES)} {p.pick(NOUNS)}."
        ),
        lambda p: (
            f"The price of the {p.pick(NOUNS)} {p.pick('went up|went down|fell|rose')} by "
            f"{p.count(1, 90)} percent {p.pick('this year|last month|since ' + p.pick(MONTHS))}."
        ),
        lambda p: (
            f"{p.pick('My name is|This is|I am|Please ask for|You can call me')} {p.person()}."
        ),
        lambda p: f"{p.pick('The letters are|It is spelled|The code reads')} {p.letters()}.",
        lambda p: (
            f"Chapter {p.count(1, 40)}, page {p.count(1, 900)}, "
            f"{p.pick('the second|the first|the last|the third')} paragraph."
        ),
        lambda p: (
            f"{p.pick('Wow|Oh|Well|Hey|Look|Listen|Hmm')}, "
            f"{p.pick('that is wonderful|I had no idea|this is great news|it works|what a day')}!"
        ),
    ]


_ALL = _agent() + _everyday()
