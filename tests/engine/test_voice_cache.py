"""VoiceCache: bounded in bytes, the least recently used goes first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rt_drama3.engine.voice_cache import VoiceCache, voice_key
from rt_drama3.model import Snapshot


def snapshot(size: int) -> Snapshot:
    """One of ``size`` bytes, in both kinds of tensors."""
    half = size // 2
    return Snapshot(
        1,
        [torch.zeros(half, dtype=torch.uint8)],
        [torch.zeros(size - half, dtype=torch.uint8)],
    )


def test_what_was_put_is_found_and_counted() -> None:
    cache, voice = VoiceCache(100), snapshot(10)
    assert cache.get("a") is None
    cache.put("a", voice)
    assert cache.get("a") is voice
    assert (cache.hits, cache.misses, len(cache), cache.nbytes) == (1, 1, 1, 10)


def test_the_least_recently_used_goes_first() -> None:
    cache = VoiceCache(30)
    for key in "abc":
        cache.put(key, snapshot(10))
    assert cache.get("a") is not None  # now the most recent
    cache.put("d", snapshot(10))
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"]
    assert cache.nbytes == 30


def test_a_large_one_pushes_out_several() -> None:
    cache = VoiceCache(30)
    for key in "abc":
        cache.put(key, snapshot(10))
    cache.put("large", snapshot(25))
    assert [key for key in (*"abc", "large") if cache.get(key)] == ["large"]
    assert cache.nbytes == 25


def test_one_that_is_too_large_alone_is_not_kept_and_drops_nothing() -> None:
    cache = VoiceCache(30)
    cache.put("a", snapshot(30))
    cache.put("b", snapshot(31))
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert cache.nbytes == 30


def test_putting_again_replaces() -> None:
    cache, second = VoiceCache(30), snapshot(20)
    cache.put("a", snapshot(10))
    cache.put("a", second)
    assert cache.get("a") is second
    assert (len(cache), cache.nbytes) == (1, 20)


def test_no_memory_means_no_cache() -> None:
    cache = VoiceCache(0)
    cache.put("a", snapshot(1))
    assert (len(cache), cache.nbytes) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50)), max_size=40))
def test_the_limit_holds_whatever_comes(puts: list[tuple[str, int]]) -> None:
    cache = VoiceCache(60)
    kept: dict[str, Snapshot] = {}
    for key, size in puts:
        kept[key] = snapshot(size)
        cache.put(key, kept[key])
        assert cache.nbytes <= 60
        assert cache.get(key) is kept[key]  # the latest always fits
    found = [voice for key in "abcdef" if (voice := cache.get(key))]
    assert sum(voice.nbytes for voice in found) == cache.nbytes
    assert len(found) == len(cache)


def test_keys_distinguish_system_blocks() -> None:
    rows = np.arange(12, dtype=np.int64).reshape(4, 3)
    assert voice_key(rows) == voice_key(rows.copy())
    assert voice_key(rows[:2]) == voice_key(np.ascontiguousarray(rows[:2]))
    changed = rows.copy()
    changed[3, 2] += 1
    assert len({voice_key(r) for r in (rows, rows[:3], changed)}) == 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_keys_do_not_depend_on_the_memory_layout(order: str) -> None:
    rows = np.arange(12, dtype=np.int64).reshape(4, 3)
    assert voice_key(np.array(rows, order=order)) == voice_key(rows)  # type: ignore[call-overload]
