"""The player, tested by examples and by hypothesis: every sample once, silence after a stop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rt_drama3.sinks.player import Player

Samples = NDArray[np.int16]


def frames(first: int, count: int) -> Samples:
    return np.arange(first, first + count, dtype=np.int16)[:, None]


def render(player: Player, count: int) -> Samples:
    out = np.full((count, player.channels), 7, np.int16)
    player.render(out)
    return out[:, 0]


def heard(samples: Samples) -> list[int]:
    return samples[samples != 0].tolist()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 30)),
        st.tuples(st.just("render"), st.integers(1, 30)),
        st.tuples(st.just("finish"), st.just(0)),
        st.tuples(st.just("prebuffer"), st.integers(0, 20)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(st.integers(40, 100), st.integers(0, 50), steps)
def test_every_frame_is_rendered_once_in_order(
    capacity: int, lead: int, calls: list[tuple[str, int]]
) -> None:
    player = Player(capacity, 2, lead=lead)
    put = 0
    out: list[Samples] = []
    for what, number in calls:
        if what == "put":
            put += player.put(np.repeat(frames(put + 1, number), 2, axis=1))
        elif what == "render":
            out.append(render(player, number))
        elif what == "finish":
            player.finish()
        else:
            player.prebuffer = number
    player.finish()
    out += [render(player, 10) for _ in range((capacity + lead) // 10 + 2)]
    played = np.concatenate(out)
    assert heard(played) == list(range(1, put + 1))
    assert heard(played[:lead]) == []
    assert player.quiet
    assert player.rendered == len(played)
    if put:
        # Every gap inside a take was counted.
        assert player.underruns <= len(calls)


@settings(deadline=None)
@given(steps, st.integers(0, 25), steps)
def test_stop_drops_earlier_frames_only(
    before: list[tuple[str, int]], fade: int, after: list[tuple[str, int]]
) -> None:
    player = Player(2_000, 1)
    put = 0

    def go(calls: list[tuple[str, int]]) -> None:
        nonlocal put
        for what, number in calls:
            if what == "put":
                # Loud, so that a faded sample is not zero, and all different.
                put += player.put(10_000 + frames(put, number))
            elif what == "render":
                out.append(render(player, number))
            elif what == "finish":
                player.finish()
            else:
                player.prebuffer = number

    out: list[Samples] = []
    go(before)
    boundary = put
    earlier = heard(np.concatenate([*out, np.zeros(0, np.int16)]))
    player.request_stop(fade)
    assert player.stopping
    out = []
    go(after)
    player.finish()
    out += [render(player, 64) for _ in range(40)]
    assert not player.stopping
    played = heard(np.concatenate(out))
    later = list(range(10_000 + boundary, 10_000 + put))
    assert played[len(played) - len(later) :] == later
    fading = played[: len(played) - len(later)]
    assert len(fading) <= min(fade, boundary - len(earlier))
    assert fading == sorted(fading, reverse=True)


def test_take_waits_for_its_prebuffer_unless_finished() -> None:
    player = Player(100, 1)
    player.prebuffer = 20
    player.put(frames(1, 10))
    assert heard(render(player, 5)) == []
    player.put(frames(11, 10))
    assert heard(render(player, 5)) == [1, 2, 3, 4, 5]
    player.finish()
    assert len(heard(render(player, 50))) == 15
    player.put(frames(21, 5))
    assert heard(render(player, 5)) == []
    player.finish()
    assert heard(render(player, 5)) == [21, 22, 23, 24, 25]
    assert player.underruns == 0


def test_running_dry_is_one_underrun_and_refills_the_prebuffer() -> None:
    player = Player(100, 1)
    player.prebuffer = 10
    player.put(frames(1, 10))
    render(player, 12)
    player.put(frames(11, 5))
    assert heard(render(player, 10)) == []
    assert player.underruns == 0
    player.put(frames(16, 5))
    assert heard(render(player, 10)) == list(range(11, 21))
    assert player.underruns == 1


def test_finishing_shortly_after_the_last_sample_is_not_an_underrun() -> None:
    player = Player(100, 1)
    player.put(frames(1, 10))
    render(player, 20)
    player.finish()
    player.put(frames(11, 10))
    assert heard(render(player, 20)) == list(range(11, 21))
    assert player.underruns == 0


def test_fade_is_linear_across_blocks_and_followed_by_silence() -> None:
    player = Player(1_000, 1)
    player.put(np.full((500, 1), 20_000, np.int16))
    render(player, 10)
    player.request_stop(100)
    out = np.concatenate([render(player, 30) for _ in range(5)])
    assert np.abs(out[:100] - 20_000 * (99 - np.arange(100)) / 100).max() <= 0.5
    assert not out[99:].any()
    assert player.quiet


def test_second_stop_does_not_restart_the_fade() -> None:
    player = Player(1_000, 1)
    player.put(np.full((500, 1), 20_000, np.int16))
    render(player, 10)
    player.request_stop(100)
    first = render(player, 50)
    player.request_stop(100)
    second = render(player, 100)
    together = np.concatenate([first, second])
    assert (np.diff(together.astype(int)) <= 0).all()
    assert not together[99:].any()


def test_stop_before_the_start_renders_silence() -> None:
    player = Player(100, 1)
    player.prebuffer = 50
    player.put(frames(1, 20))
    player.request_stop(10)
    assert heard(render(player, 40)) == []
    assert player.quiet
