"""Stage 3 and 7: trains the codec, one half at a time, against the fixed codebooks.

The decode half regresses the teacher's waveform from the codes: spectra at four resolutions, and
below 4 kHz their complex values, which the locked phase makes predictable. The encode half learns
to find the codes in the waveform, with everything else frozen.
"""

from __future__ import annotations

import json
import logging
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.checkpoint.config_files import parse_codec_config
from training.analysis import log_mels, to_float
from training.clips import (
    FRAME_SAMPLES,
    SAMPLE_RATE,
    Samples,
    codes_path,
    load_shard,
    shard_files,
    trained_on,
)
from training.codebooks import BOOKS, CODES
from training.codec_layout import amplify, load_official, read_history
from training.codec_model import CodecModel, initialise
from training.runs import save_whole, share_done

log = logging.getLogger(__name__)

RESOLUTIONS = ((2048, 512), (1024, 256), (512, 128), (240, 60))  # FFT size and hop
_WAVEFORM_BELOW = 4000  # Hz
_LEAD_FRAMES = 3  # of a crop, without loss
_SHARPNESS = 20.0  # of nearness, for the encode half's cross entropy
_CODE_WEIGHT = 0.005  # of that cross entropy relative to the latents' distance
_FITTED_ON = 30_000  # frames
_WARMUP, _REPORT, _LOOK = 100, 50, 200  # steps
HALVES = ("decode", "encode")


def codec_json() -> dict[str, Any]:
    """``codec_config.json`` of the nano voice."""
    return {
        "sr": SAMPLE_RATE,
        "latent": 256,
        "n_codebooks": BOOKS,
        "codebook_size": CODES,
        "codebook_dim": 24,
        "post": {"n_layer": 2, "n_head": 4, "head_dim": 64, "ffn": 512, "window": 64},
        "decoder_dim": 256,
        "rates": [4, 4, 4, 8],
        "up": [2, 2],
        "rope_table_dtype": "float32",
        "encoder_dim": 8,
        "encoder_rates": [8, 4, 4, 4],
        "encoder_transformer": None,
        "pre": None,
    }


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        half: "decode" or "encode".
        rate: peak learning rate; it falls to zero over the run.
        minutes: of training, over all parts of the run; or
        steps: number of steps instead, if not 0.
        crops, frames: crops in a batch, and codec frames in a crop.
        beginnings: share of batches that are beginnings of clips. There every sample counts; the
            first frames of other crops do not, since what was before them is missing.
        save_minutes: between checkpoints.
        seed: of everything random.
        device: "cpu" or "cuda".
    """

    half: str = "decode"
    rate: float = 1e-3
    minutes: float = 60.0
    steps: int = 0
    crops: int = 4
    frames: int = 22
    beginnings: float = 0.2
    save_minutes: float = 4.0
    seed: int = 0
    device: str = "cpu"


class Crops:
    """Random stretches of clips, as codes and PCM."""

    def __init__(self, folder: Path, frames: int) -> None:
        self.folder, self.frames = folder, frames
        self.shards = 0
        self.pcm: list[Samples] = []
        self.codes: list[Tensor] = []
        self.places: list[tuple[int, int, int]] = []  # shard, first frame, frames

    def look(self, most: int | None = None) -> None:
        """Reads shards that were not there before, up to ``most`` in all."""
        for path in shard_files(self.folder)[self.shards : most]:
            if not codes_path(path).exists():
                break
            shard = load_shard(path)
            self.pcm.append(shard.pcm)
            self.codes.append(torch.from_numpy(np.load(codes_path(path)).astype(np.int64)))
            for clip, start in zip(shard.clips, shard.starts(), strict=True):
                if trained_on(clip) and clip.frames >= self.frames:
                    self.places.append((self.shards, start, clip.frames))
            self.shards += 1

    def draw(
        self, count: int, random: np.random.Generator, begin: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Codes ``[count, frames, books]`` and PCM ``[count, frames * 2048]``.

        Args:
            count: crops.
            random: chooses them.
            begin: take the beginnings of clips.
        """
        codes, pcm = [], []
        if not self.places:
            raise FileNotFoundError(f"{self.folder} holds no clips with codes that are long enough")
        for place in random.integers(0, len(self.places), count):
            shard, start, length = self.places[place]
            first = start
            if not begin:
                first += int(random.integers(0, length - self.frames + 1))
            codes.append(self.codes[shard][first : first + self.frames])
            samples = slice(first * FRAME_SAMPLES, (first + self.frames) * FRAME_SAMPLES)
            pcm.append(to_float(self.pcm[shard][samples]))
        return torch.stack(codes), torch.stack(pcm)

    def some_codes(self, most: int) -> Tensor:
        """Codes of the first ``most`` frames, ``[n, books]``."""
        if not self.codes:
            raise FileNotFoundError(f"{self.folder} holds no shards with codes yet")
        return torch.cat(self.codes)[:most]


def spectral_losses(made: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log magnitude, relative magnitude, and relative complex error below 4 kHz; means."""
    logs, relative, complexes = [], [], []
    for size, hop in RESOLUTIONS:
        window = torch.hann_window(size, device=made.device)
        a, b = (torch.stft(x, size, hop, size, window, return_complex=True) for x in (made, wanted))
        floor = 1e-3 * math.sqrt(size)
        size_a, size_b = _magnitude(a), b.abs()
        logs.append((torch.log(size_a + floor) - torch.log(size_b + floor)).abs().mean())
        relative.append((size_a - size_b).abs().mean() / (size_b.mean() + floor))
        low = int(_WAVEFORM_BELOW / SAMPLE_RATE * size) + 1
        error = _magnitude(a[:, :low] - b[:, :low]).mean()
        complexes.append(error / (size_b[:, :low].mean() + floor))
    return (
        torch.stack(logs).mean(),
        torch.stack(relative).mean(),
        torch.stack(complexes).mean(),
    )


def _magnitude(spectrum: Tensor) -> Tensor:
    return (spectrum.real.square() + spectrum.imag.square() + 1e-8).sqrt()


def decode_losses(made: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    """What the decode half minimises, and its parts."""
    logs, relative, complexes = spectral_losses(made, wanted)
    wave = (made - wanted).abs().mean() / (wanted.abs().mean() + 1e-4)
    mel = (log_mels(made, centre=True) - log_mels(wanted, centre=True)).abs().mean()
    total = 2 * logs + 0.5 * relative + 0.5 * complexes + 0.2 * wave + 1.5 * mel
    return {
        "total": total,
        "log": logs,
        "relative": relative,
        "complex": complexes,
        "wave": wave,
        "mel": mel,
    }


def encode_losses(model: CodecModel, codes: Tensor, pcm: Tensor, skip: int) -> dict[str, Tensor]:
    """What the encode half minimises, and its parts.

    They are the latents' squared distance from those of the codes, in parts of their variance; then
    every book's cross entropy, and how often its nearest code is the true one. The first ``skip``
    frames do not count.
    """
    latents, codes = model.latents(pcm)[:, skip:], codes[:, skip:]
    wanted = model.quantised(codes)
    distance = F.mse_loss(latents, wanted) / wanted.var()
    losses: dict[str, Tensor] = {"latent": distance}
    total = distance
    for book, near in enumerate(model.nearness(latents, codes)):
        true = codes[..., book].flatten()
        loss = F.cross_entropy(_SHARPNESS * near.flatten(0, 1), true)
        total = total + _CODE_WEIGHT * loss
        losses[f"book {book}"] = loss
        losses[f"right {book}"] = (near.flatten(0, 1).argmax(-1) == true).float().mean()
    return {"total": total, **losses}


class Training:
    """A run of one half: model, optimizer and how far it got."""

    def __init__(
        self,
        folder: Path,
        crops: Crops,
        settings: Settings,
        start: Path | None = None,
        sizes: dict[str, Any] | None = None,
    ) -> None:
        """Begins a run.

        Args:
            folder: for checkpoint and curve.
            crops: to train on.
            settings: how.
            start: voice to begin from, or None for random weights.
            sizes: ``codec_config.json``, if not the nano voice's.
        """
        torch.manual_seed(settings.seed)
        self.folder, self.crops, self.settings = folder, crops, settings
        self.device = torch.device(settings.device)
        encode = settings.half == "encode"
        self.model = CodecModel(parse_codec_config(sizes or codec_json()), encoder=encode)
        initialise(self.model)
        self.unfitted = encode  # whether the encode half's projections are still random
        if start is not None:
            official = torch.load(start / "codec.pth", weights_only=True)
            amplify(official, 1 / read_history(start).get("gain", 1.0))
            missing = load_official(self.model, official)
            self.unfitted = encode and any(".in_proj." in name for name in missing)
        self.model.to(self.device)
        trained = [w for name, w in self.model.named_parameters() if encode == encodes(name)]
        self.model.requires_grad_(False)
        for weight in trained:
            weight.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(
            trained, lr=settings.rate, betas=(0.8, 0.98), weight_decay=0.01, fused=True
        )
        self.step, self.elapsed = 0, 0.0
        self.found: list[dict[str, float]] = []

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.settings.half}.pt"

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return share_done(self.settings, self.step, self.elapsed)

    def resume(self) -> None:
        """Resumes from the checkpoint, if there is one; otherwise fits random projections."""
        if not self.checkpoint.exists():
            if self.unfitted:
                self.crops.look()
                self.model.fit_projections(self.crops.some_codes(_FITTED_ON).to(self.device))
            return
        saved: dict[str, Any] = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.elapsed = saved["step"], saved["elapsed"]
        self.crops.look(saved["shards"])
        log.info("resumed at step %d after %.1f min", self.step, self.elapsed / 60)

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "settings": asdict(self.settings),
            "step": self.step,
            "elapsed": self.elapsed,
            "shards": self.crops.shards,
        }
        save_whole(state, self.checkpoint)

    def run(self) -> None:
        """Trains to the end of the run, saving now and then."""
        saved = last = time.monotonic()
        while self.progress < 1:
            if self.step % _LOOK == 0:
                self.crops.look()
            self._train()
            now = time.monotonic()
            self.elapsed, last = self.elapsed + now - last, now
            if self.step % _REPORT == 0:
                self._write()
            if now - saved > 60 * self.settings.save_minutes:
                self.save()
                saved = now
        self.save()

    def _train(self) -> None:
        random = np.random.default_rng((self.settings.seed, self.step))
        begin = random.random() < self.settings.beginnings
        codes, pcm = self.crops.draw(self.settings.crops, random, begin)
        codes, pcm = codes.to(self.device), pcm.to(self.device)
        rate = self.settings.rate * min(1.0, (self.step + 1) / _WARMUP)
        rate *= max(0.02, 1 - self.progress) ** 0.8
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.settings.half == "encode":
            losses = encode_losses(self.model, codes, pcm, 0 if begin else _LEAD_FRAMES)
        else:
            heard = 0 if begin else _LEAD_FRAMES * FRAME_SAMPLES
            losses = decode_losses(self.model.decode(codes)[:, heard:], pcm[:, heard:])
        self.optimizer.zero_grad(set_to_none=True)
        losses["total"].backward()
        norm = nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], 5.0)
        if bool(torch.isfinite(norm)):
            self.optimizer.step()
        else:
            log.warning("step %d skipped: its gradient is not finite", self.step)
        self.step += 1
        self.found.append({name: float(loss.detach()) for name, loss in losses.items()})

    def _write(self) -> None:
        entry = {
            "step": self.step,
            "minutes": round(self.elapsed / 60, 2),
            "rate": round(self.optimizer.param_groups[0]["lr"], 7),
            **{
                name: round(float(np.mean([one[name] for one in self.found])), 4)
                for name in self.found[0]
            },
        }
        self.found.clear()
        log.info("%s", json.dumps(entry))
        path = self.folder / f"{self.settings.half}.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def encodes(name: str) -> bool:
    """Whether a parameter belongs to the encode half."""
    return name.startswith(("encoder.", "downsample.", "pre_module.")) or ".in_proj." in name


def train(folder: Path, data: Path, settings: Settings, start: Path | None) -> None:
    """Trains one half in ``folder``, or resumes its training.

    Args:
        folder: for checkpoint and curve.
        data: with shards and codes.
        settings: how.
        start: voice to begin from, or None for random weights; the encode half needs one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    training = Training(folder, Crops(data, settings.frames), settings, start)
    training.resume()
    training.run()
