"""Features that the codes are computed from: log-mel and phoneme occupancy of codec frames."""
# ruff: noqa: RUF001 - phonemes

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from training.clips import FRAME_SAMPLES, PHONE_SECONDS, SAMPLE_RATE, ClipInfo, Numbers, Samples

MELS, SLOTS = 64, 4  # bands, and spectra per codec frame
HOP = FRAME_SAMPLES // SLOTS
N_FFT, WINDOW = 2048, 1536
FLOOR = 0.02  # added to band magnitudes before the logarithm
_LOW, _HIGH = 50.0, 12_000.0  # Hz

VOWELS = "AIOQWYiuæɑɔəɛɜɪʊʌᵊᵻ"
PHONES = "AIOQWYbdfhijklmnpstuvwzæðŋɑɔəɛɜɡɪɹʃʊʌʒʤʧθᵊᵻɾTʔ"
CLASSES = [" ", *PHONES, *".,;:!?—…"]  # of occupancy
_CLASS = {char: index for index, char in enumerate(CLASSES)}
_FINE = 5  # occupancy is sampled every 5 ms
_PARTS = 10  # samples of it per codec frame


@cache
def mel_bands() -> Tensor:
    """Triangular bands, each summing to one: float32 ``[MELS, N_FFT / 2 + 1]``."""

    def mel(hertz: float) -> float:
        return 2595 * float(np.log10(1 + hertz / 700))

    edges = 700 * (10 ** (np.linspace(mel(_LOW), mel(_HIGH), MELS + 2) / 2595) - 1)
    bins = np.linspace(0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    bands = np.clip(np.minimum(rising, falling), 0, None)
    return torch.from_numpy(bands / np.maximum(bands.sum(1, keepdims=True), 1e-6)).float()


def log_mels(samples: Tensor, centre: bool = False) -> Tensor:
    """Log-mel spectra of ``samples [..., n]``, n a multiple of 2048: ``[..., MELS, n / 512]``.

    Spectrum k is centred on the middle of its quarter frame unless ``centre`` says the edges (which
    makes one more), as losses want them.
    """
    if not centre:
        samples = torch.nn.functional.pad(samples, (N_FFT // 2 - HOP // 2, N_FFT // 2 + HOP // 2))
    window = torch.hann_window(WINDOW, device=samples.device)
    spectra = torch.stft(samples, N_FFT, HOP, WINDOW, window, center=centre, return_complex=True)
    if not centre:
        spectra = spectra[..., : (samples.shape[-1] - N_FFT) // HOP]
    magnitude = (spectra.real.square() + spectra.imag.square() + 1e-8).sqrt()
    return torch.log(mel_bands().to(samples.device) @ magnitude + FLOOR)


def features(samples: Tensor) -> Tensor:
    """Features of the codec frames of a clip ``[n]``: float32 ``[n / 2048, SLOTS * MELS]``."""
    return log_mels(samples).transpose(-1, -2).reshape(-1, SLOTS * MELS)


def to_float(pcm: Samples) -> Tensor:
    """int16 PCM as float32 in -1..1."""
    return torch.from_numpy(pcm.astype(np.float32) / 32768)


def occupancy(clip: ClipInfo) -> Tensor:
    """How much of each half frame every phoneme takes: ``[frames, 2 * len(CLASSES)]``."""
    labels = np.array(_labels(clip), dtype=np.int64)
    per_label = round(PHONE_SECONDS * 1000) // _FINE
    fine = np.repeat(labels, per_label)
    seconds = (np.arange(clip.frames * _PARTS) + 0.5) * (FRAME_SAMPLES / SAMPLE_RATE / _PARTS)
    places = (seconds * 1000 / _FINE).astype(np.int64)
    known = fine[np.minimum(places, len(fine) - 1)]
    grid: Numbers = np.where(places < len(fine), known, 0).reshape(clip.frames, _PARTS)
    halves = np.zeros((clip.frames, 2, len(CLASSES)), np.float32)
    rows = np.arange(clip.frames)
    for part in range(_PARTS):
        halves[rows, part * 2 // _PARTS, grid[:, part]] += 2 / _PARTS
    return torch.from_numpy(halves.reshape(clip.frames, -1))


def _labels(clip: ClipInfo) -> list[int]:
    """The class of every 25 ms step.

    Stress marks belong to the vowel behind them, spaces between words to the phoneme before them:
    there is no pause without a mark.
    """
    labels: list[int] = []
    for sentence in clip.sentences:
        marks = f" {sentence.phones} "
        for index, (char, steps) in enumerate(zip(marks, sentence.durations, strict=True)):
            if char in "ˈˌ":
                char = marks[index + 1]
            if char == " " and 0 < index < len(marks) - 1:
                char = marks[index - 1] if marks[index - 1] in _CLASS else " "
            labels += [_CLASS.get(char, 0)] * steps
    return labels
