"""Sample-rate conversion of a stream. The output does not depend on how the input was split.

``low_latency`` is our own linear-phase polyphase filter, because general libraries work in blocks
and delay the signal by tens of milliseconds. With ``low`` the smaller of the two rates, it is

- flat within 0.25 dB up to ``7/16 low``: 3.5 kHz at 8 kHz, 7 kHz at 16 kHz, 10.5 kHz at 24 kHz,
  19.3 kHz from 44.1 to 48 kHz;
- below -80 dB above the stop edge. For ``low`` of at least 16 kHz that is the Nyquist frequency
  ``low / 2``: there is no aliasing. Below 16 kHz, 2 ms are too short for that, and the stop edge is
  ``7/16 low + 1000 Hz`` (4.5 kHz at 8 kHz): nothing aliases into the pass band, and frequencies
  between Nyquist and the stop edge alias into the band between pass edge and Nyquist, attenuated as
  follows (at 8 kHz: 4.25 kHz appears at 3.75 kHz, 31 dB down);
- in between, 3 dB down at a quarter of the way from pass edge to stop edge, 12 dB halfway, and
  31 dB at three quarters.

Its delay is at most 1.95 ms of input, half its length; ``low`` above 16 kHz needs less. The output
is aligned: sample k is the signal at k / to_rate seconds.

Computation: outputs are computed in groups of 16 neighbours. A group reads one window of the input
and is one small matrix times that window; the matrices of a period (after which the phases repeat)
are stacked, their windows are overlapping views of the input, and one batched product computes them
all. However the stream was split, each group is the same BLAS call on the same numbers at the same
offset in a cache line, and samples that have not arrived meet zero weights; that is why the results
are bit-exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import soxr
from numpy.typing import NDArray

from rt_drama3.audio.pcm import checked_samples
from rt_drama3.audio.resample import check_stream_rate
from rt_drama3.errors import RequestError

Quality: TypeAlias = Literal["low_latency", "high"]
Samples: TypeAlias = NDArray[np.float32]

MAX_HELD_SECONDS = 1.95e-3  # of the low-latency filter, which guarantees 2 ms

_MAX_PHASES = 1_024  # beyond this (44100 to 44101) the tables outgrow the cache, then memory
_GROUP = 16  # outputs per matrix product; fewer waste calls, more waste multiplications by zero
_ONE_THREAD = 8_192  # OpenBLAS splits larger matrices (from 9216) across threads
_LINE = 16  # float32 values in a cache line
_BLOCK = 8_192  # input samples processed at a time, which bounds the buffer


class StreamResampler:
    """Converts one mono stream from one rate to another, chunk by chunk.

    The chunks together equal one ``push`` of everything, bit for bit, and have exactly
    ``ceil(samples * to_rate / from_rate)`` samples after ``flush``. If the rates are equal, samples
    pass unchanged and uncopied. Not thread-safe.

    Args:
        from_rate: input rate, an integer from 8000 to 192000 Hz.
        to_rate: output rate, likewise.
        quality: ``low_latency`` is described above. ``high`` is soxr's HQ filter: flat to 91 % of
            Nyquist and below -100 dB, but with a delay of up to 20 ms (44100 to 48000 Hz), 40 ms
            (to 16000 Hz), 80 ms (to 8000 Hz) or 160 ms for the most unequal rates. It also replaces
            ``low_latency`` for pairs of rates that would need more than 1024 phases (44100 to 44101
            Hz); no pair of common rates does.

    Raises:
        RequestError: a rate or the quality is not supported.
    """

    def __init__(self, from_rate: int, to_rate: int, quality: Quality = "low_latency") -> None:
        check_stream_rate(from_rate, "rate to convert from")
        check_stream_rate(to_rate, "rate to convert to")
        if quality not in ("low_latency", "high"):
            raise RequestError(
                f"The resampling quality is {quality!r}; use 'low_latency' or 'high'."
            )
        self.from_rate = int(from_rate)
        self.to_rate = int(to_rate)
        self.quality = quality
        self._taken = 0
        self._returned = 0
        self._flushed = False
        phases = self.to_rate // math.gcd(self.from_rate, self.to_rate)
        self._converter: _PassThrough | _Soxr | _Polyphase
        if self.from_rate == self.to_rate:
            self._converter = _PassThrough()
        elif quality == "high" or phases > _MAX_PHASES:
            self._converter = _Soxr(self.from_rate, self.to_rate)
        else:
            self._converter = _Polyphase(_design(self.from_rate, self.to_rate))

    @property
    def held_samples(self) -> int:
        """Output samples that correspond to the input so far but have not been returned yet."""
        return -(-self._taken * self.to_rate // self.from_rate) - self._returned

    def push(self, samples: NDArray[Any]) -> Samples:
        """Converts the next chunk.

        Args:
            samples: ``[samples]`` floats, any number of them.

        Returns:
            ``[ready]`` float32: all output samples that no later input can change.

        Raises:
            RequestError: the samples are not mono finite floats (the stream remains usable), or the
                stream was flushed.
        """
        self._check_open()
        chunk = checked_samples(samples)
        self._taken += chunk.size
        ready = self._converter.push(chunk)
        self._returned += ready.size
        return ready

    def flush(self) -> Samples:
        """Ends the stream, as if silence followed.

        Returns:
            ``[held_samples]`` float32.

        Raises:
            RequestError: the stream was already flushed.
        """
        self._check_open()
        self._flushed = True
        ready = self._converter.flush(self.held_samples)
        self._returned += ready.size
        return ready

    def _check_open(self) -> None:
        if self._flushed:
            raise RequestError(
                "The resampler was flushed, which ends its stream; create a new one for the next."
            )


class _PassThrough:
    def push(self, chunk: Samples) -> Samples:
        return chunk

    def flush(self, held: int) -> Samples:
        return np.zeros(held, np.float32)


class _Soxr:
    """soxr's streaming HQ filter, result to end on the exact sample."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality="HQ")
        # The library rounds the length to the nearest sample; this much silence produces the last
        # sample and changes no other, since its filter assumes silence after the end.
        self._padding = np.zeros(from_rate // to_rate + 1, np.float32)

    def push(self, chunk: Samples) -> Samples:
        ready: Samples = self._stream.resample_chunk(chunk)
        return ready

    def flush(self, held: int) -> Samples:
        rest: Samples = self._stream.resample_chunk(self._padding, last=True)
        return rest[:held]


@dataclass(frozen=True)
class _Bank:
    """The filter of one pair of rates, as matrices.

    Attributes:
        outputs, inputs: output and input samples per period, in the ratio of the rates.
        half: input samples that an output depends on, on either side.
        hop: input samples from the window of one group to the next.
        weights: ``[groups, group, window]`` float32; rows of a group beyond the period are zero.
            The first element is aligned to a cache line.
    """

    outputs: int
    inputs: int
    half: int
    hop: int
    weights: Samples


class _Polyphase:
    """Applies a bank to a stream.

    Positions count input samples, with ``half - 1`` zeros before the first one, so that the window
    of group g in period p begins at ``p * inputs + g * hop``. The buffer begins at a multiple of a
    cache line: sample n of a stream always has the same offset in one.
    """

    def __init__(self, bank: _Bank) -> None:
        self._bank = bank
        groups, self._group, self._window = bank.weights.shape
        # Less than a period and a window is kept between pushes; a product may read one more of
        # each beyond the newest sample.
        room = _BLOCK + 2 * (bank.inputs + groups * bank.hop + self._window + _LINE)
        self._buffer = _aligned_zeros((room,))
        self._begin = 0  # position of the buffer's first sample
        self._end = bank.half - 1  # position after the newest sample
        self._returned = 0  # output samples

    def push(self, chunk: Samples) -> Samples:
        if chunk.size <= _BLOCK:
            return self._push_block(chunk)
        starts = range(0, chunk.size, _BLOCK)
        return np.concatenate([self._push_block(chunk[at : at + _BLOCK]) for at in starts])

    def flush(self, held: int) -> Samples:
        return self.push(np.zeros(self._bank.half, np.float32))

    def _push_block(self, chunk: Samples) -> Samples:
        self._append(chunk)
        bank = self._bank
        # Output k needs the input up to floor(k * inputs / outputs) + half.
        taken = self._end - (bank.half - 1)
        ready = max(0, -(-(taken - bank.half) * bank.outputs // bank.inputs))
        if ready <= self._returned:
            return np.zeros(0, np.float32)
        first, begin = divmod(self._returned, bank.outputs)
        last, end = divmod(ready - 1, bank.outputs)
        if first == last:  # only the required groups
            groups = slice(begin // self._group, end // self._group + 1)
            result = self._product(first, 1, groups).reshape(-1)
            begin -= groups.start * self._group
        else:
            result = self._product(first, last - first + 1, slice(0, bank.weights.shape[0]))
            result = result[:, : bank.outputs].reshape(-1)
        count = ready - self._returned
        self._returned = ready
        return result[begin : begin + count]

    def _product(self, period: int, periods: int, groups: slice) -> Samples:
        """Returns ``[periods, outputs of the groups]``."""
        bank = self._bank
        at = period * bank.inputs + groups.start * bank.hop - self._begin
        count = groups.stop - groups.start
        size = self._buffer.itemsize
        windows = np.ndarray(
            (periods, count, self._window, 1),
            np.float32,
            self._buffer,
            at * size,
            (bank.inputs * size, bank.hop * size, size, size),
        )
        # [groups, group, window] @ [periods, groups, window, 1] -> [periods, groups, group, 1]
        result: Samples = np.matmul(bank.weights[groups], windows)
        return result.reshape(periods, count * self._group)

    def _append(self, chunk: Samples) -> None:
        bank = self._bank
        if self._end - self._begin + chunk.size > _BLOCK + bank.inputs + self._window + _LINE:
            needed = self._returned // bank.outputs * bank.inputs  # the period of the next output
            move = needed // _LINE * _LINE - self._begin
            kept = self._end - self._begin - move
            self._buffer[:kept] = self._buffer[move : move + kept]
            self._begin += move
        at = self._end - self._begin
        self._buffer[at : at + chunk.size] = chunk
        self._end += chunk.size


@lru_cache(maxsize=32)
def _design(from_rate: int, to_rate: int) -> _Bank:
    """Designs the filter of a pair of rates."""
    divisor = math.gcd(from_rate, to_rate)
    repeats = -(-_GROUP * divisor // to_rate)  # a period fills at least one group
    outputs, inputs = to_rate // divisor * repeats, from_rate // divisor * repeats
    low = min(from_rate, to_rate)
    half = int(MAX_HELD_SECONDS * from_rate * 16_000 / max(low, 16_000))
    pass_edge = 7 / 16 * low
    stop_edge = max(low / 2, pass_edge + 1_000)

    output = np.arange(outputs)
    centre, phase = np.divmod(output * inputs, outputs)  # whole input samples, and the remainder
    # The taps of an output are the inputs centre - half + 1 .. centre + half.
    distance = phase[:, None] / outputs + half - 1 - np.arange(2 * half)  # [outputs, taps]
    taps = _kernel(distance / half, pass_edge * half / from_rate, stop_edge * half / from_rate)
    taps /= taps.sum(axis=1, keepdims=True)  # unity gain at 0 Hz

    group = _GROUP
    while True:
        hop = group * inputs // outputs
        offset = centre - output // group * hop  # offset of an output's first tap in its window
        window = -(-(int(offset.max()) + 2 * half) // 8) * 8  # whole vectors
        if group * window <= _ONE_THREAD or group == 1:
            break
        group //= 2
    weights = _aligned_zeros((-(-outputs // group), group, window))
    rows = weights.reshape(-1, window)
    rows[output[:, None], offset[:, None] + np.arange(2 * half)] = taps
    weights.setflags(write=False)  # shared by all streams of this pair
    return _Bank(outputs, inputs, half, hop, weights)


def _kernel(
    position: NDArray[np.float64], pass_edge: float, stop_edge: float
) -> NDArray[np.float64]:
    """Evaluates the least-squares optimal low-pass kernel.

    The kernel on [-1, 1] is a series of cos(pi k x) up to the stop edge, fitted to 1 in the pass
    band and 0 in the stop band. A windowed sinc ripples equally in both, which wastes length on a
    pass band a thousand times flatter than audible; the weight buys attenuation instead.

    Args:
        position: positions as a fraction of the half length.
        pass_edge, stop_edge: frequencies in periods per half length.

    Returns:
        The values at these positions, in arbitrary scale.
    """
    terms = np.arange(int(2 * stop_edge) + 3)
    density = 16  # points per period of frequency, about eight per ripple
    passed = np.linspace(0, pass_edge, int(pass_edge * density) + 1)
    stopped = np.linspace(stop_edge, stop_edge + 20, 20 * density + 1)  # it decays from there
    frequency = np.concatenate([passed, stopped])[:, None]
    response = np.sinc(2 * frequency - terms) + np.sinc(2 * frequency + terms)
    target = np.where(frequency[:, 0] <= pass_edge, 1.0, 0.0)
    weight = np.where(frequency[:, 0] <= pass_edge, 1.0, 200.0)
    weighted = response * weight[:, None]
    # Not a matrix product, which would wake the threads of BLAS for tens of milliseconds.
    normal = np.einsum("fi,fj->ij", weighted, weighted)
    series = np.linalg.solve(normal, np.einsum("fi,f->i", weighted, target * weight))
    # Clenshaw's recurrence: the sum of series[k] * cos(k * angle).
    twice = 2 * np.cos(np.pi * position)
    one, two = np.zeros_like(position), np.zeros_like(position)
    for value in series[:0:-1]:
        one, two = value + twice * one - two, one
    values: NDArray[np.float64] = series[0] + twice / 2 * one - two
    return values


def _aligned_zeros(shape: tuple[int, ...]) -> Samples:
    """Returns zeros whose first element is aligned to a cache line."""
    count = math.prod(shape)
    memory = np.zeros(count + _LINE, np.float32)
    skip = -(memory.ctypes.data // memory.itemsize) % _LINE
    return memory[skip : skip + count].reshape(shape)
