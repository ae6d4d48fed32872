"""Filling a model: several threads, and FP8 numbers by moving bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from rt_drama3.checkpoint import filling, load_model, read_config
from rt_drama3.checkpoint.threads import in_threads
from rt_drama3.model.weights import dequantize, dequantize_into
from rt_drama3.system import memory


class Hand:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_small_tasks_run_concurrently_and_large_ones_in_turns() -> None:
    both, hands = threading.Barrier(2, timeout=10), list[Hand]()
    large = threading.Lock()

    def small(hand: Hand) -> None:
        both.wait()

    def big(hand: Hand) -> None:
        assert large.acquire(blocking=False)
        large.release()

    def make() -> Hand:
        hands.append(Hand())
        return hands[-1]

    tasks: list[Callable[[Hand], None]] = [small, small, *[big] * 20]
    in_threads(tasks, 2, make, [task is big for task in tasks])
    assert len(hands) == 2
    assert all(hand.closed for hand in hands)


def test_the_earliest_fault_is_raised_and_nothing_begins_after_it() -> None:
    begun: list[int] = []
    second = threading.Event()

    def task(number: int, _: Hand) -> None:
        begun.append(number)
        if number == 0:
            assert second.wait(10)
            raise ValueError("first")
        second.set()
        raise ValueError("second")

    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="first"):
        in_threads([partial(task, n) for n in range(9)], 2, Hand, [False] * 9)
    assert sorted(begun) == [0, 1]
    assert torch.get_num_threads() == threads


def test_an_interrupt_is_raised_and_ends_the_other_threads() -> None:
    begun: list[int] = []
    both = threading.Barrier(2, timeout=10)

    def task(number: int, _: Hand) -> None:
        begun.append(number)
        both.wait()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_threads([partial(task, n) for n in range(2)], 2, Hand, [False] * 2)
    assert sorted(begun) == [0, 1]


def test_several_threads_load_the_same_model(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(tiny)
    one = load_model(tiny, config, "cpu", torch.float32)
    monkeypatch.setattr(filling, "MANY_BYTES", 0)
    monkeypatch.setattr(filling, "compute_cores", lambda: 3)
    seen: list[tuple[int, int]] = []
    several = load_model(tiny, config, "cpu", torch.float32, lambda *now: seen.append(now))
    for ours, theirs in zip(several.parameters(), one.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    done = [bytes_done for bytes_done, _ in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_fp8_number(dtype: torch.dtype) -> None:
    """To the bit what one float32 product with the scale gives, from 2**-130 to 2**100."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes & 0x7F != 0x7F].repeat(260)[: 256 * 256].view(256, 256)
    generator = torch.Generator().manual_seed(1)
    for exponent in (-130.0, -12.0, 1.0, 100.0):
        scale = torch.rand(2, 2, generator=generator).add(0.5).mul(2.0**exponent)
        wanted = dequantize(codes.view(torch.float8_e4m3fn), scale, dtype)
        found = torch.empty(256, 256, dtype=dtype)
        dequantize_into(found, codes.view(torch.float8_e4m3fn), scale)
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


def test_memory_is_touched_in_whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(memory, "_madvise", lambda: lambda a, n: asked.append((a, n)))
    page = memory.mmap.PAGESIZE
    memory.touch(10 * page - 1, 3 * page)
    memory.touch(10 * page + 1, page)
    memory.touch(10 * page, 2 * page)
    assert asked == [(10 * page, 2 * page), (10 * page, 2 * page)]


def test_touched_memory_keeps_its_contents() -> None:
    data = torch.arange(1 << 20)
    memory.touch(data.data_ptr(), data.nbytes)
    assert torch.equal(data, torch.arange(1 << 20))
