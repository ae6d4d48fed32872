"""The engine's decisions: groups, prefill, admission, and how durations are learned."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt_drama3.engine.scheduling import SAFETY, Costs, Estimate, batch_size, load_with, may_prefill

seconds = st.floats(0, 2, allow_nan=False)


def costs(
    step: dict[int, float] | None = None,
    decode: dict[int, float] | None = None,
    chunk: float | None = None,
) -> Costs:
    return Costs(
        {n: Estimate(s) for n, s in (step or {}).items()},
        Estimate(chunk),
        {n: Estimate(s) for n, s in (decode or {}).items()},
    )


CHEAP = costs(decode={1: 0.002, 2: 0.003, 4: 0.004})


# Estimates.


def test_the_first_sample_is_the_estimate() -> None:
    estimate = Estimate()
    assert estimate.or_else(7.0) == 7.0
    estimate.add(0.25)
    assert estimate.seconds == estimate.or_else(7.0) == 0.25


def test_an_estimate_rises_faster_than_it_falls() -> None:
    rising, falling = Estimate(1.0), Estimate(2.0)
    rising.add(2.0)
    falling.add(1.0)
    assert rising.seconds is not None
    assert falling.seconds is not None
    assert rising.seconds - 1.0 > 2 * (2.0 - falling.seconds) > 0


@given(start=seconds, samples=st.lists(seconds, max_size=20))
def test_an_estimate_stays_between_its_samples(start: float, samples: list[float]) -> None:
    estimate = Estimate(start)
    for sample in samples:
        estimate.add(sample)
    seen = [start, *samples]
    assert min(seen) - 1e-9 <= estimate.or_else(-1) <= max(seen) + 1e-9


def test_an_estimate_comes_to_a_new_level() -> None:
    estimate = Estimate(1.0)
    for _ in range(100):
        estimate.add(0.01)
    assert estimate.or_else(0) == pytest.approx(0.01, abs=1e-3)


def test_a_known_cost_is_itself() -> None:
    known = costs(step={1: 0.01, 4: 0.03}, decode={2: 0.005})
    assert known.step_seconds(1) == 0.01
    assert known.step_seconds(4) == 0.03
    assert known.decode_seconds(2) == 0.005


def test_an_unknown_cost_comes_from_the_nearest_and_errs_on_the_long_side() -> None:
    known = costs(step={1: 0.01, 4: 0.03})
    assert known.step_seconds(2) == pytest.approx(0.02)  # grown with its size
    assert known.step_seconds(3) == 0.03  # a larger batch bounds it
    assert known.step_seconds(8) == pytest.approx(0.06)


def test_costs_that_are_not_known_at_all_are_nothing() -> None:
    assert Costs().step_seconds(3) == 0.0
    assert Costs({1: Estimate()}).step_seconds(1) == 0.0


@given(known=st.dictionaries(st.integers(1, 16), seconds, min_size=1), size=st.integers(1, 32))
def test_an_unknown_cost_is_never_below_every_known_one(known: dict[int, float], size: int) -> None:
    assert costs(step=known).step_seconds(size) >= min(known.values())


def test_costs_may_be_learned_while_they_are_read() -> None:
    """The codec's thread meets new batch sizes while the device thread decides."""
    shared = costs(step={1: 0.001}, decode={1: 0.001})
    done = threading.Event()

    def learn() -> None:
        while not done.is_set():
            for size in range(2, 400):
                shared.decode.setdefault(size, Estimate()).add(0.001)
            shared.decode = {1: Estimate(0.001)}

    with ThreadPoolExecutor(1) as pool:
        learner = pool.submit(learn)
        try:
            for _ in range(3000):
                load_with(2, shared, 0.05, overlapped=True)
                shared.decode_seconds(7)
        finally:
            done.set()
        learner.result()


# Decode batches.


def grow(buffered: float, ceiling: int, rounds: int, known: Costs = CHEAP) -> list[int]:
    sizes: list[int] = []
    for _ in range(rounds):
        sizes.append(batch_size(buffered, ceiling, sizes[-1] if sizes else 0, 0.01, known))
    return sizes


def test_batches_grow_by_doubling_to_the_ceiling() -> None:
    assert grow(10.0, 4, 5) == [1, 2, 4, 4, 4]
    assert grow(10.0, 1, 3) == [1, 1, 1]
    assert grow(10.0, 16, 6) == [1, 2, 4, 8, 16, 16]


@pytest.mark.parametrize(
    ("ceiling", "sizes"),
    [(3, [1, 2, 3, 3]), (5, [1, 2, 4, 5, 5]), (6, [1, 2, 4, 6, 6]), (12, [1, 2, 4, 8, 12, 12])],
)
def test_a_ceiling_that_is_not_a_power_of_two_is_reached(ceiling: int, sizes: list[int]) -> None:
    assert grow(10.0, ceiling, len(sizes)) == sizes


def test_the_first_batch_is_one_frame_whatever_is_buffered() -> None:
    assert batch_size(1e9, 64, 0, 0.0, Costs()) == 1


def test_batches_fall_back_when_the_buffer_shrinks() -> None:
    need = {n: n * 0.01 + CHEAP.decode_seconds(n) + SAFETY for n in (2, 4)}
    assert batch_size(need[4], 4, 4, 0.01, CHEAP) == 4
    assert batch_size(need[4] - 1e-6, 4, 4, 0.01, CHEAP) == 2
    assert batch_size(need[2] - 1e-6, 4, 4, 0.01, CHEAP) == 1
    assert batch_size(-5.0, 4, 4, 0.01, CHEAP) == 1


@given(
    buffered=st.floats(-1, 5),
    ceiling=st.integers(1, 64),
    previous=st.integers(0, 64),
    step=st.floats(0, 0.2),
    decode=st.floats(0, 0.1),
)
def test_a_batch_is_never_more_than_the_buffer_covers(
    buffered: float, ceiling: int, previous: int, step: float, decode: float
) -> None:
    known = costs(decode={1: decode})
    size = batch_size(buffered, ceiling, previous, step, known)
    assert 1 <= size <= min(ceiling, max(1, 2 * previous))
    if size > 1:
        assert buffered >= size * step + known.decode_seconds(size) + SAFETY


@given(
    buffered=st.floats(0, 5),
    more=st.floats(0, 5),
    ceiling=st.integers(1, 64),
    last=st.integers(0, 64),
)
def test_more_audio_never_makes_a_smaller_batch(
    buffered: float, more: float, ceiling: int, last: int
) -> None:
    small, large = (batch_size(x, ceiling, last, 0.02, CHEAP) for x in (buffered, buffered + more))
    assert small <= large


# Prefill and admission.


def test_prefill_runs_when_no_stream_is_playing() -> None:
    assert may_prefill([], chunk=100.0, step=1.0, decode=1.0)


def test_one_short_buffer_forbids_prefill() -> None:
    need = 0.05 + 0.01 + 0.004 + SAFETY
    assert may_prefill([need, 3.0], 0.05, 0.01, 0.004)
    assert not may_prefill([3.0, need - 1e-6], 0.05, 0.01, 0.004)
    assert not may_prefill([3.0, -1.0], 0.0, 0.0, 0.0)


@given(buffers=st.lists(st.floats(-1, 3)), chunk=seconds, step=seconds, decode=seconds)
def test_no_stream_runs_dry_during_a_block(
    buffers: list[float], chunk: float, step: float, decode: float
) -> None:
    allowed = may_prefill(buffers, chunk, step, decode)
    assert allowed == all(
        buffered - chunk - step - decode >= SAFETY - 1e-12 for buffered in buffers
    ) or (min(abs(buffered - chunk - step - decode - SAFETY) for buffered in buffers) < 1e-9)


def test_load_counts_the_slower_stage_when_they_overlap() -> None:
    known = costs(step={1: 0.01, 2: 0.02}, decode={1: 0.004, 4: 0.008})
    assert load_with(2, known, 0.05, overlapped=True) == pytest.approx(0.02 / 0.05)
    assert load_with(2, known, 0.05, overlapped=False) == pytest.approx((0.02 + 2 * 0.002) / 0.05)


def test_load_is_that_of_the_codec_where_that_is_slower() -> None:
    known = costs(step={1: 0.001}, decode={1: 0.03})
    assert load_with(1, known, 0.05, overlapped=True) == pytest.approx(0.6)


@given(streams=st.integers(1, 64), step=seconds, decode=seconds)
def test_load_grows_with_the_streams(streams: int, step: float, decode: float) -> None:
    known = costs(step={1: step}, decode={1: decode})
    for overlapped in (True, False):
        one, more = (load_with(n, known, 0.05, overlapped) for n in (streams, streams + 1))
        assert one <= more
    assert load_with(streams, known, 0.05, True) <= load_with(streams, known, 0.05, False)


def test_load_without_any_measurement_lets_all_in() -> None:
    assert load_with(99, Costs(), 0.05, overlapped=True) == 0.0
