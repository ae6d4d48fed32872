"""Stage 2: the teacher reads the lines; its audio, durations and pitch go into shards.

The teacher is hibari (Apache-2.0, voice "heart"): a network gives an f0 curve and spectra on an 80
Hz grid, a signal path makes audio of them. The network's graph is opened to show the durations too,
and the signal path is run here with the locked phase of ``phase_lock``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from training.clips import (
    FRAME_SAMPLES,
    SAMPLE_RATE,
    ClipInfo,
    Numbers,
    Samples,
    Sentence,
    Shard,
    Word,
    save_shard,
    shard_path,
)
from training.phase_lock import HOP, TEACHER_RATE, lock, pitch_codes

log = logging.getLogger(__name__)

SHARD_LINES = 250
SPEEDS = {"fast": 1.3, "slow": 0.77}
STYLED = {"fast": 0.03, "slow": 0.03}  # share of the lines
_DURATIONS = "/Clip_output_0"  # the graph's tensor with frames per phoneme
_PHONE = 600  # samples of the 25 ms grid
_LEAD = 2  # 25 ms steps of silence before the first sound
_TAIL, _BETWEEN = 2600, 5400  # samples kept after the last sound of a clip, of a sentence
_SILENT = 0.006
_HARMONICS_TO = 11_000  # Hz

Wave = npt.NDArray[np.float32]


class Reading(NamedTuple):
    """One line as read."""

    pcm: Samples
    pitch: Numbers
    sentences: tuple[Sentence, ...]


class Teacher:
    """hibari with its durations shown and its glottal phase locked."""

    def __init__(self) -> None:
        import onnx
        import onnxruntime
        from hibari import Hibari, dsp

        self._dsp: Any = dsp
        self._hibari: Any = Hibari()
        graph = onnx.load(self._hibari.model_path)
        graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(_DURATIONS))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(graph.SerializeToString(), options)
        self._outputs = [output.name for output in self._session.get_outputs()]

    def read(self, text: str, speed: float = 1.0, seed: int = 0) -> Reading:
        """Speaks a line.

        Raises:
            ValueError: the teacher has nothing to say for it.
        """
        waves: list[Wave] = []
        phases, voicings, sentences = [], [], []
        parts = self._hibari.split_sentences(text)
        start = 0
        for part in parts:
            words, phones = self._phonemes(part)
            if not phones.strip():
                raise ValueError(f"the teacher finds no phonemes in {part!r}")
            spectra, f0, durations = self._network(phones, speed)
            phase, pitch, voiced = lock(f0, start)
            wave = self._synthesise(spectra, phase, pitch, voiced, seed)
            tail = _TAIL if part is parts[-1] else _BETWEEN
            wave, durations = _trim(wave, durations, tail)
            waves.append(wave)
            phases.append(phase[: len(wave)])
            voicings.append(voiced[: len(wave)])
            sentences.append(Sentence(words, phones, tuple(int(d) for d in durations)))
            start += len(wave)
        wave = np.concatenate(waves)
        pcm = _to_codec_rate(wave)
        frames = len(pcm) // FRAME_SAMPLES
        codes = pitch_codes(np.concatenate(phases), np.concatenate(voicings), frames)
        return Reading(pcm, codes, tuple(sentences))

    def _phonemes(self, sentence: str) -> tuple[tuple[Word, ...], str]:
        """The words and the phonemes that the network knows, joined."""
        tokens = self._hibari.g2p.phonemize_tokens(self._hibari.g2p.tokenize(sentence))
        words = tuple(Word(t.text, t.phonemes or "", bool(t.whitespace)) for t in tokens)
        joined = "".join(word.phones + " " * word.spaced for word in words).strip()
        return words, "".join(char for char in joined if char in self._hibari.vocab)

    def _network(self, phones: str, speed: float) -> tuple[list[Any], Wave, Numbers]:
        """Five spectra ``[601, F]``, f0 ``[F]`` and durations, the leading pause cut to 50 ms."""
        ids = [[0, *(self._hibari.vocab[char] for char in phones), 0]]
        feed = {"ids": np.asarray(ids, np.int64), "speed": np.asarray([speed], np.float32)}
        found = dict(zip(self._outputs, self._session.run(None, feed), strict=True))
        durations = found[_DURATIONS].reshape(-1).astype(np.int64)
        f0 = found["f0"][0].astype(np.float32)
        if len(f0) != 2 * durations.sum():
            raise RuntimeError("the teacher's graph is not the one this stage was written for")
        cut = max(0, int(durations[0]) - _LEAD)
        durations[0] -= cut
        spectra = [found[name][0][:, 2 * cut :] for name in ("lh", "theta", "ln", "lr", "phi")]
        return spectra, f0[2 * cut :], durations

    def _synthesise(
        self, spectra: list[Any], phase: Any, pitch: Any, voiced: Any, seed: int
    ) -> Wave:
        """The teacher's signal path with a given phase instead of the integral of f0."""
        dsp = self._dsp
        harmonic, theta, noise, free, free_phase = spectra
        angle = (2 * np.pi * (phase % 1.0)).astype(np.float32)
        order = (np.floor(_HARMONICS_TO / pitch) + 0.5).astype(np.float32)
        below = 2 * np.sin(angle / 2)
        flat = np.abs(below) <= 2e-3  # the limit of the quotient
        pulses = np.where(flat, order, np.sin(order * angle) / np.where(flat, 1, below)) - 0.5
        pulses[~voiced] = 0
        spectrum = dsp.stft(pulses.astype(np.float32), harmonic.shape[1])
        spectrum = spectrum * _polar(dsp.ex(harmonic), np.tanh(theta) * np.float32(np.pi))
        random = np.random.default_rng(seed)
        shape = (harmonic.shape[0], 2 * harmonic.shape[1])
        gauss = random.standard_normal(shape, dtype=np.float32).view(np.complex64)
        spectrum += gauss * dsp.ex(noise) + _polar(dsp.ex(free), free_phase)
        wave: Wave = dsp.ola(spectrum)
        return wave


def _polar(magnitude: Wave, angle: Wave) -> npt.NDArray[np.complex64]:
    """Complex numbers in float32; numpy's complex exponential is several times slower."""
    made = np.empty(angle.shape, np.complex64)
    np.cos(angle, out=made.real)
    np.sin(angle, out=made.imag)
    made *= magnitude
    return made


def _trim(wave: Wave, durations: Numbers, tail: int) -> tuple[Wave, Numbers]:
    """Cuts the trailing silence to ``tail`` samples, on the 25 ms grid, and the durations alike."""
    loud = np.flatnonzero(np.abs(wave) > _SILENT)
    last = (int(loud[-1]) if len(loud) else len(wave)) + tail
    steps = -(-last // _PHONE)
    if steps * _PHONE >= len(wave):
        return wave, durations
    durations = durations.copy()
    excess = int(durations.sum()) - steps
    for index in range(len(durations) - 1, -1, -1):
        taken = min(max(excess, 0), int(durations[index]))
        durations[index] -= taken
        excess -= taken
    return wave[: steps * _PHONE], durations


def _to_codec_rate(wave: Wave) -> Samples:
    """24 kHz float to int16 at 44.1 kHz, padded to whole codec frames."""
    import soxr

    high = soxr.resample(wave, TEACHER_RATE, SAMPLE_RATE, quality="HQ")
    high = np.pad(high, (0, -len(high) % FRAME_SAMPLES))
    pcm: Samples = (np.clip(high, -1, 1) * 32767).astype(np.int16)
    return pcm


def style_of(line: int, seed: int = 7) -> str:
    """The direction that a line is spoken with, mostly none."""
    draw = np.random.default_rng((seed, line)).random()
    for style, share in STYLED.items():
        if draw < share:
            return style
        draw -= share
    return ""


def read_lines(
    folder: Path,
    texts: Sequence[str],
    make_teacher: Callable[[], Teacher] = Teacher,
    worker: int = 0,
    workers: int = 1,
) -> None:
    """Makes the shards that are still missing; several workers take turns by shard number.

    Args:
        folder: for the shards.
        texts: all lines; a line's number is its place here.
        make_teacher: called when there is something to do.
        worker, workers: this one's number, and how many there are.
    """
    shards = -(-len(texts) // SHARD_LINES)
    missing = [n for n in range(worker, shards, workers) if not shard_path(folder, n).exists()]
    teacher = make_teacher() if missing else None
    for number in missing:
        assert teacher is not None
        began, seconds = time.monotonic(), 0.0
        clips, pcm, pitch = [], [], []
        first = number * SHARD_LINES
        for line, text in enumerate(texts[first : first + SHARD_LINES], first):
            style = style_of(line)
            try:
                reading = teacher.read(text, SPEEDS.get(style, 1.0), seed=line)
            except ValueError as error:
                log.warning("line %d left out: %s", line, error)
                continue
            clips.append(ClipInfo(line, text, style, len(reading.pitch), reading.sentences))
            pcm.append(reading.pcm)
            pitch.append(reading.pitch)
            seconds += len(reading.pcm) / SAMPLE_RATE
        save_shard(folder, number, Shard(tuple(clips), np.concatenate(pcm), np.concatenate(pitch)))
        wall = time.monotonic() - began
        log.info(
            "shard %d: %.1f min of audio, %.0fx realtime", number, seconds / 60, seconds / wall
        )


def assets() -> Path:
    """Folder with the teacher's lexicon."""
    import hibari

    return Path(hibari.__file__).parent / "assets"


assert HOP * 2 == _PHONE
