"""The ring buffer against a plain list, for any sequence of calls."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.sinks.ring import Ring

calls = st.lists(
    st.tuples(st.sampled_from(["put", "take", "skip"]), st.integers(0, 12)), max_size=60
)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 2), calls)
def test_ring_matches_a_bounded_list(capacity: int, channels: int, steps: list[tuple[str, int]]):
    ring = Ring(capacity, channels)
    waiting: list[int] = []
    counter, read = 0, 0
    for what, count in steps:
        if what == "put":
            frames = np.arange(counter, counter + count, dtype=np.int16)
            taken = ring.put(np.repeat(frames[:, None], channels, axis=1))
            assert taken == min(count, capacity - len(waiting))
            waiting += list(range(counter, counter + taken))
            counter += taken
        elif what == "take":
            out = np.full((count, channels), -1, np.int16)
            got = ring.take(out)
            assert got == min(count, len(waiting))
            assert out[:got, -1].tolist() == waiting[:got]
            assert (out[got:] == -1).all()
            del waiting[:got]
            read += got
        else:
            ring.skip_to(read + count)
            dropped = min(count, len(waiting))
            del waiting[:dropped]
            read += dropped
        assert (ring.available, ring.room) == (len(waiting), capacity - len(waiting))
