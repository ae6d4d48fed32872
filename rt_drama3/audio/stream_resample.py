"""Sample-rate conversion of a stream: what comes out does not depend on how it was cut going in.

``low_latency`` is a linear-phase polyphase filter of our own, because general libraries work in
blocks and hold back tens of milliseconds. With ``low`` the smaller of the two rates, it is

- flat within 0.25 dB up to ``7/16 low``: 3.5 kHz at 8 kHz, 7 kHz at 16 kHz, 10.5 kHz at 24 kHz,
  19.3 kHz from 44.1 to 48 kHz;
- below -80 dB from the stop edge on. For ``low`` of 16 kHz and more that is the Nyquist frequency
  ``low / 2``: nothing folds back anywhere. Below 16 kHz, 2 ms are too short for that, and the stop
  edge is ``7/16 low + 1000 Hz`` (4.5 kHz at 8 kHz): nothing folds back into the pass band, and what
  lies between Nyquist and the stop edge reaches the part between pass band and Nyquist, attenuated
  as follows (at 8 kHz: 4.25 kHz appears at 3.75 kHz, 31 dB down);
- in between, 3 dB down a quarter of the way from pass band to stop edge, 12 dB halfway, and 31 dB
  at three quarters.

It holds back at most 1.95 ms of input, which is its half length; ``low`` above 16 kHz needs less.
The result is aligned: output sample k is the signal at k / to_rate seconds.

How it is computed: outputs are taken in groups of 16 neighbours. A group reads one window of the
input and is one small matrix times that window; the matrices of a period (after which the phases
repeat) are stacked, their windows are overlapping views of the input, and one batched product makes
them all. Each group is the same BLAS call on the same numbers at the same place of a cache line,
however the stream was cut, and samples that have not come yet meet zero weights; that is why the
results are equal bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import soxr
from numpy.typing import NDArray

from rt_drama3.audio.pcm import checked_samples
from rt_drama3.errors import RequestError

Quality: TypeAlias = Literal["low_latency", "high"]
Samples: TypeAlias = NDArray[np.float32]

MIN_STREAM_RATE = 8_000
MAX_STREAM_RATE = 192_000
MAX_HELD_SECONDS = 1.95e-3  # of the low-latency filter; the promise is 2 ms

_MAX_PHASES = 1_024  # beyond this (44100 to 44101) the tables outgrow the cache, and then memory
_GROUP = 16  # outputs of one matrix product; fewer waste calls, more waste multiplications by zero
_ONE_THREAD = 8_192  # OpenBLAS splits larger matrices (from 9216 on) over threads
_LINE = 16  # float32 of a cache line
_BLOCK = 8_192  # input samples taken at a time, which bounds the buffer


class StreamResampler:
    """Converts one mono stream from one rate to another, piece by piece.

    All pieces together equal one ``push`` of everything, bit for bit, and have exactly
    ``ceil(samples * to_rate / from_rate)`` samples after ``flush``. Where the rates agree, samples
    pass unchanged and uncopied. Not for several threads at once.

    Args:
        from_rate: rate of what is pushed, an integer in Hz from 8000 to 192000.
        to_rate: the wanted rate, likewise.
        quality: ``low_latency`` is described above. ``high`` is soxr's HQ filter: flat to 91 % of
            Nyquist and below -100 dB, but it holds back up to 20 ms (44100 to 48000 Hz), 40 ms (to
            16000 Hz), 80 ms (to 8000 Hz), 160 ms for the most unequal rates. It also stands in for
            ``low_latency`` where the rates have so little in common that more than 1024 phases
            would be needed (44100 to 44101 Hz); no pair of usual rates is like that.

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
        self._given = 0
        self._flushed = False
        phases = self.to_rate // math.gcd(self.from_rate, self.to_rate)
        self._converter: _Converter
        if self.from_rate == self.to_rate:
            self._converter = _PassThrough()
        elif quality == "high" or phases > _MAX_PHASES:
            self._converter = _Soxr(self.from_rate, self.to_rate)
        else:
            self._converter = _Polyphase(_design(self.from_rate, self.to_rate))

    @property
    def held_samples(self) -> int:
        """Output samples that what was pushed so far is worth, but that have not come out yet."""
        return self._worth() - self._given

    def push(self, samples: NDArray[Any]) -> Samples:
        """Converts the next piece.

        Args:
            samples: ``[samples]`` floats, any number of them, also none.

        Returns:
            ``[ready]`` float32: all output samples that no later input can change.

        Raises:
            RequestError: the samples are not mono finite floats (the stream can go on with others),
                or the stream was flushed.
        """
        self._check_open()
        piece = checked_samples(samples)
        self._taken += piece.size
        ready = self._converter.push(piece)
        self._given += ready.size
        return ready

    def flush(self) -> Samples:
        """Ends the stream, as if silence followed.

        Returns:
            ``[held_samples]`` float32.

        Raises:
            RequestError: the stream was flushed before.
        """
        self._check_open()
        self._flushed = True
        ready = self._converter.flush(self.held_samples)
        self._given += ready.size
        return ready

    def _worth(self) -> int:
        return -(-self._taken * self.to_rate // self.from_rate)

    def _check_open(self) -> None:
        if self._flushed:
            raise RequestError(
                "The resampler was flushed, which ends its stream; make a new one for the next."
            )


class _Converter(Protocol):
    def push(self, piece: Samples) -> Samples: ...

    def flush(self, held: int) -> Samples: ...


class _PassThrough:
    def push(self, piece: Samples) -> Samples:
        return piece

    def flush(self, held: int) -> Samples:
        return np.zeros(held, np.float32)


class _Soxr:
    """soxr's streaming HQ filter, made to end on the exact sample."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality="HQ")
        # The library rounds the length to the nearest sample; this much silence makes the last
        # sample appear and changes no other, since its filter assumes silence there anyway.
        self._padding = np.zeros(from_rate // to_rate + 1, np.float32)

    def push(self, piece: Samples) -> Samples:
        ready: Samples = self._stream.resample_chunk(piece)
        return ready

    def flush(self, held: int) -> Samples:
        rest: Samples = self._stream.resample_chunk(self._padding, last=True)
        return rest[:held]


@dataclass(frozen=True)
class _Bank:
    """The filter of one pair of rates, as the matrices that are applied.

    Attributes:
        outputs, inputs: samples of a period on either side, their ratio being the rates'.
        half: input samples on either side of an output that it depends on.
        hop: input samples from the window of one group to the next.
        weights: ``[groups, group, window]`` float32; the rows of a group that go beyond the period
            are zero. Its first sample lies on a cache line.
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
    cache line: sample n of a stream always lies at the same place of one.
    """

    def __init__(self, bank: _Bank) -> None:
        self._bank = bank
        groups, self._group, self._window = bank.weights.shape
        # What is kept between pushes is less than a period and a window; a product may look at one
        # more of each beyond the newest sample.
        room = _BLOCK + 2 * (bank.inputs + groups * bank.hop + self._window + _LINE)
        self._buffer = _on_a_line((room,))
        self._begin = 0  # position of the buffer's first sample
        self._end = bank.half - 1  # position after the newest sample
        self._given = 0  # output samples

    def push(self, piece: Samples) -> Samples:
        if piece.size <= _BLOCK:
            return self._push_block(piece)
        starts = range(0, piece.size, _BLOCK)
        return np.concatenate([self._push_block(piece[at : at + _BLOCK]) for at in starts])

    def flush(self, held: int) -> Samples:
        return self.push(np.zeros(self._bank.half, np.float32))

    def _push_block(self, piece: Samples) -> Samples:
        self._append(piece)
        bank = self._bank
        # Output k needs the input up to floor(k * inputs / outputs) + half.
        taken = self._end - (bank.half - 1)
        ready = max(0, -(-(taken - bank.half) * bank.outputs // bank.inputs))
        if ready <= self._given:
            return np.zeros(0, np.float32)
        first, begin = divmod(self._given, bank.outputs)
        last, end = divmod(ready - 1, bank.outputs)
        if first == last:  # only the groups that are needed
            groups = slice(begin // self._group, end // self._group + 1)
            made = self._product(first, 1, groups).reshape(-1)
            begin -= groups.start * self._group
        else:
            made = self._product(first, last - first + 1, slice(0, bank.weights.shape[0]))
            made = made[:, : bank.outputs].reshape(-1)
        count = ready - self._given
        self._given = ready
        return made[begin : begin + count]

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
        made: Samples = np.matmul(bank.weights[groups], windows)
        return made.reshape(periods, count * self._group)

    def _append(self, piece: Samples) -> None:
        bank = self._bank
        if self._end - self._begin + piece.size > _BLOCK + bank.inputs + self._window + _LINE:
            needed = self._given // bank.outputs * bank.inputs  # the period of the next output
            move = needed // _LINE * _LINE - self._begin
            kept = self._end - self._begin - move
            self._buffer[:kept] = self._buffer[move : move + kept]
            self._begin += move
        at = self._end - self._begin
        self._buffer[at : at + piece.size] = piece
        self._end += piece.size


@lru_cache(maxsize=32)
def _design(from_rate: int, to_rate: int) -> _Bank:
    """Makes the filter of a pair of rates."""
    divisor = math.gcd(from_rate, to_rate)
    repeats = -(-_GROUP * divisor // to_rate)  # a period fills at least one group
    outputs, inputs = to_rate // divisor * repeats, from_rate // divisor * repeats
    low = min(from_rate, to_rate)
    half = int(MAX_HELD_SECONDS * from_rate * 16_000 / max(low, 16_000))
    pass_edge = 7 / 16 * low
    stop_edge = max(low / 2, pass_edge + 1_000)

    output = np.arange(outputs)
    centre, phase = np.divmod(output * inputs, outputs)  # in whole input samples, and the rest
    # The taps of an output are the inputs centre - half + 1 .. centre + half.
    distance = phase[:, None] / outputs + half - 1 - np.arange(2 * half)  # [outputs, taps]
    taps = _kernel(distance / half, pass_edge * half / from_rate, stop_edge * half / from_rate)
    taps /= taps.sum(axis=1, keepdims=True)  # a constant stays that constant

    group = _GROUP
    while True:
        hop = group * inputs // outputs
        offset = centre - output // group * hop  # of an output's first tap in its window
        window = -(-(int(offset.max()) + 2 * half) // 8) * 8  # whole vectors
        if group * window <= _ONE_THREAD or group == 1:
            break
        group //= 2
    weights = _on_a_line((-(-outputs // group), group, window))
    rows = weights.reshape(-1, window)
    rows[output[:, None], offset[:, None] + np.arange(2 * half)] = taps
    weights.setflags(write=False)  # shared by all streams of this pair
    return _Bank(outputs, inputs, half, hop, weights)


def _kernel(place: NDArray[np.float64], pass_edge: float, stop_edge: float) -> NDArray[np.float64]:
    """Evaluates the low-pass kernel that is best in the least-squares sense.

    The kernel on [-1, 1] is a series of cos(pi k x) as far as the stop edge, fitted to 1 in the
    pass band and 0 in the stop band. A windowed sinc ripples equally in both, which spends length
    on a pass band a thousand times flatter than anyone hears; the weight buys attenuation instead.

    Args:
        place: where, as a fraction of the half length.
        pass_edge, stop_edge: frequencies in periods per half length.

    Returns:
        Its values there, in arbitrary scale.
    """
    terms = np.arange(int(2 * stop_edge) + 3)
    density = 16  # points per period of frequency, some eight in a ripple
    passed = np.linspace(0, pass_edge, int(pass_edge * density) + 1)
    stopped = np.linspace(stop_edge, stop_edge + 20, 20 * density + 1)  # it decays from there
    frequency = np.concatenate([passed, stopped])[:, None]
    response = np.sinc(2 * frequency - terms) + np.sinc(2 * frequency + terms)
    target = np.where(frequency[:, 0] <= pass_edge, 1.0, 0.0)
    weight = np.where(frequency[:, 0] <= pass_edge, 1.0, 200.0)
    weighted = response * weight[:, None]
    # Not as a matrix product, which would wake the threads of BLAS for tens of milliseconds.
    normal = np.einsum("fi,fj->ij", weighted, weighted)
    series = np.linalg.solve(normal, np.einsum("fi,f->i", weighted, target * weight))
    # Clenshaw's recurrence: the sum of series[k] * cos(k * angle).
    twice = 2 * np.cos(np.pi * place)
    one, two = np.zeros_like(place), np.zeros_like(place)
    for value in series[:0:-1]:
        one, two = value + twice * one - two, one
    value_there: NDArray[np.float64] = series[0] + twice / 2 * one - two
    return value_there


def _on_a_line(shape: tuple[int, ...]) -> Samples:
    """Returns zeros whose first element lies on a cache line."""
    count = math.prod(shape)
    memory = np.zeros(count + _LINE, np.float32)
    skip = -(memory.ctypes.data // memory.itemsize) % _LINE
    return memory[skip : skip + count].reshape(shape)


def check_stream_rate(rate: int, what: str) -> None:
    """Refuses rates that no stream has.

    Raises:
        RequestError: not an integer from ``MIN_STREAM_RATE`` to ``MAX_STREAM_RATE`` Hz.
    """
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise RequestError(f"The {what} must be an integer in Hz, not {rate!r}.")
    if not MIN_STREAM_RATE <= rate <= MAX_STREAM_RATE:
        raise RequestError(
            f"The {what} is {rate} Hz; streams can have {MIN_STREAM_RATE} to {MAX_STREAM_RATE} Hz."
        )
