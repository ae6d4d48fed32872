"""A client that plays while reading hears everything on any line; one that stalls is ended."""

from __future__ import annotations

import asyncio
import math

import pytest

from rt_drama3.server.pace import LEAST_UNSENT, UNSENT_SECONDS, Pace, Playback, unsent_bytes
from rt_drama3.server.sender import patient
from tests.latency.virtual import run
from tests.protocol.tools import Clock

CHUNK = 2_048 / 44_100  # seconds
ALLOWED = 10.0
HOUR = 3_600.0


class Kernel:
    """Buffers of both ends: the writer wakes at a third free, the window opens in steps.

    Args:
        room: bytes of the server's buffer.
        theirs: bytes of the client's.
        step: bytes that have to be free before the client's system says so.
        visible: whether the server sees what its system holds.
    """

    def __init__(self, room: int, theirs: int, step: int, visible: bool = True) -> None:
        self.room, self.theirs, self.step, self.visible = room, theirs, step, visible
        self.handed = self.acknowledged = self.read = 0
        self.edge = theirs  # up to which the client's system takes bytes
        self.full = False

    def held(self) -> int:
        return self.handed - self.acknowledged if self.visible else 0

    def limit_unsent(self, size: int) -> None:
        """This line is what it is."""

    def write(self, size: int) -> None:
        self.handed += size
        self._move()

    def take(self, size: int) -> bool:
        """The client reads; false if that much has not arrived."""
        if self.acknowledged - self.read < size:
            return False
        self.read += size
        if self.theirs - (self.edge - self.read) >= self.step:
            self.edge = self.read + self.theirs
        self._move()
        return True

    def _move(self) -> None:
        self.acknowledged = max(self.acknowledged, min(self.handed, self.edge))
        held = self.handed - self.acknowledged
        self.full = held > (self.room * 2 // 3 if self.full else self.room)


class Player:
    """Reads each chunk a second before it is due.

    Args:
        speed: of its clock.
        stops: seconds of audio after which it reads nothing more.
    """

    def __init__(self, speed: float = 1.0, stops: float = math.inf) -> None:
        self.speed, self.stops, self.chunks = speed, stops, 0
        self.began: float | None = None

    def due(self) -> float:
        """When it reads the next chunk."""
        played = self.chunks * CHUNK
        if self.began is None or played >= self.stops:
            return math.inf
        return self.began + max(0.0, played - 1.0) / self.speed


def send(
    seconds: float,
    rate: int,
    kernel: Kernel,
    player: Player,
    clock: Clock,
    pace: Pace,
    made_in: float = 0.0,
) -> bool:
    """Sends audio of ``rate`` bytes a second; false if the client was found too slow."""
    size = round(CHUNK * rate)

    def play(until: float) -> None:
        while player.due() <= until and kernel.take(size):
            player.chunks += 1

    for _ in range(round(seconds / CHUNK)):
        clock.now += made_in
        play(clock.now)
        pace.begin()
        while kernel.full:
            left = pace.patience()
            if left <= 0:
                return False
            clock.now = max(clock.now, min(player.due(), clock.now + max(left, 0.001)))
            play(clock.now)
        kernel.write(size)
        pace.sent(CHUNK)
        player.began = clock.now if player.began is None else player.began
        play(clock.now)
    return True


@pytest.mark.parametrize("rate", [2_000, 8_000, 16_000, 96_000])  # opus, mu-law, pcm
@pytest.mark.parametrize("visible", [True, False])
def test_a_client_that_plays_while_reading_hears_an_hour(rate: int, visible: bool) -> None:
    clock = Clock()
    kernel = Kernel(560_000, 131_072, 65_536, visible)
    assert send(HOUR, rate, kernel, Player(), clock, Pace(ALLOWED, kernel, clock))


@pytest.mark.parametrize("room", [4_096, 65_536, 560_000])
@pytest.mark.parametrize("theirs", [2_304, 131_072, 6 << 20])
def test_whatever_the_buffers_are(room: int, theirs: int) -> None:
    clock = Clock()
    kernel = Kernel(room, theirs, theirs // 2)
    assert send(HOUR / 6, 16_000, kernel, Player(), clock, Pace(ALLOWED, kernel, clock))


def test_a_sound_card_may_be_slow_by_a_little() -> None:
    clock = Clock()
    kernel = Kernel(65_536, 65_536, 1_152)
    assert send(HOUR, 32_000, kernel, Player(0.99), clock, Pace(ALLOWED, kernel, clock))


def test_half_the_speed_is_too_slow() -> None:
    clock = Clock()
    kernel = Kernel(65_536, 65_536, 1_152)
    began = clock.now
    assert not send(HOUR, 32_000, kernel, Player(0.5), clock, Pace(ALLOWED, kernel, clock))
    assert clock.now - began < 60


@pytest.mark.parametrize("rate", [2_000, 16_000, 96_000])
@pytest.mark.parametrize("stops", [0.0, 100.0])
def test_a_client_that_stalls_is_ended_once_its_audio_has_run_out(rate: int, stops: float) -> None:
    clock = Clock()
    kernel = Kernel(round(UNSENT_SECONDS * rate), 16_384, 1_152)
    began = clock.now
    player = Player(stops=stops)
    assert not send(HOUR, rate, kernel, player, clock, Pace(ALLOWED, kernel, clock))
    ran_out = began + kernel.acknowledged // round(CHUNK * rate) * CHUNK
    assert clock.now - ran_out == pytest.approx(ALLOWED, abs=0.1)


def test_where_the_system_reports_nothing_that_takes_as_long_as_its_bound() -> None:
    clock = Clock()
    kernel = Kernel(round(UNSENT_SECONDS * 16_000), 16_384, 1_152, visible=False)
    began = clock.now
    assert not send(HOUR, 16_000, kernel, Player(stops=0), clock, Pace(ALLOWED, kernel, clock))
    ran_out = began + kernel.acknowledged / 16_000
    assert 0 < clock.now - ran_out - ALLOWED < UNSENT_SECONDS + 0.1


def test_waiting_for_the_server_is_not_slow() -> None:
    clock = Clock()
    kernel = Kernel(65_536, 65_536, 1_152)
    pace = Pace(ALLOWED, kernel, clock)
    assert send(60, 32_000, kernel, Player(), clock, pace, made_in=2 * CHUNK)
    clock.now += HOUR  # no text
    assert send(60, 32_000, kernel, Player(), clock, pace)


def test_a_client_that_catches_up_is_forgiven() -> None:
    clock = Clock()
    kernel = Kernel(1_000, 1_000, 1)
    pace = Pace(ALLOWED, kernel, clock)
    for _ in range(10):
        pace.begin()
        clock.now += 8.0
        assert pace.patience() == pytest.approx(2.0)
        kernel.write(1_000)
        pace.sent(8.0)
        assert kernel.take(1_000)


def test_the_next_utterance_waits_until_the_last_one_was_played() -> None:
    """One pace for a connection: a client may queue what it is sent."""
    clock = Clock()
    kernel, player = Kernel(560_000, 131_072, 65_536), Player()
    pace = Pace(ALLOWED, kernel, clock)
    for _ in range(20):
        assert send(20, 16_000, kernel, player, clock, pace)


def test_when_all_is_heard() -> None:
    clock = Clock()
    kernel = Kernel(1 << 20, 1_000, 1)
    pace = Pace(ALLOWED, kernel, clock)
    for _ in range(50):
        pace.begin()
        kernel.write(100)
        pace.sent(0.5)
    assert pace.heard_at == pytest.approx(clock.now + 25.0)
    assert pace.patience() == pytest.approx(5.0 + ALLOWED)  # what it has acknowledged


def test_what_an_encoder_gathers_counts_with_what_comes_next() -> None:
    clock = Clock()
    kernel = Kernel(1_000, 1_000, 1)
    pace = Pace(ALLOWED, kernel, clock)
    for size in (0, 0, 100):
        pace.begin()
        kernel.write(size)
        pace.sent(1.0)
    assert pace.patience() == pytest.approx(3.0 + ALLOWED)


def test_waiting_continues_while_the_client_acknowledges() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        kernel = Kernel(1_000, 1_000, 1)
        pace = Pace(ALLOWED, kernel, loop.time)
        for _ in range(10):  # half of it is acknowledged
            pace.begin()
            kernel.write(200)
            pace.sent(2.0)
        began = loop.time()
        pace.begin()
        async with patient(pace):
            await asyncio.sleep(15.0)
            kernel.take(1_000)  # ten seconds more
            await asyncio.sleep(14.9)
        pace.sent(0.0)
        waited = loop.time() - began
        pace.begin()
        with pytest.raises(TimeoutError):
            async with patient(pace):
                await asyncio.Event().wait()
        return waited, loop.time() - began

    assert run(main()) == pytest.approx((29.9, 30.0), abs=0.6)


@pytest.mark.parametrize("rate", [1_000, 16_000, 192_000])
def test_what_may_wait_is_a_bound_in_seconds(rate: int) -> None:
    size = unsent_bytes(rate, 262_144)
    assert size == max(LEAST_UNSENT, min(262_144, 2 * rate))


def test_gaps_are_counted_but_for_want_of_text() -> None:
    clock = Clock()
    playback = Playback(clock)
    assert not playback.play(0.1, False)
    clock.now += 0.05
    assert not playback.play(0.1, False)
    clock.now += 0.2
    assert playback.play(0.1, False)
    clock.now += 5
    assert not playback.play(0.1, True)
