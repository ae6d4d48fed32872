"""Stage 5: trains the language model on the codes, for a given time or number of steps.

Everything that decides the course of training is in the checkpoint or follows from the seed and the
step, so that a run may be stopped at any checkpoint and resumes as if it had not been stopped.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as together
from torch import Tensor

from rt_drama3.checkpoint.config_files import parse_model_config
from training.clips import codes_path, load_shard, shard_files, trained_on
from training.layout import read_voice
from training.lexicon import Lexicon
from training.model import LanguageModel, Losses
from training.rows import Utterance, build, pack, plan_scenes, utterance
from training.runs import save_whole, share_done
from training.vocabulary import config_json

log = logging.getLogger(__name__)

MEETING = "tcp://127.0.0.1:29611"  # where workers of one run find each other

_VALIDATION_CLIPS, _VALIDATION_BATCH = 60, 15
_WARMUP = 20  # steps
_REPORT, _VALIDATE = 20, 400  # steps
_BOOK_WEIGHTS = (1.0, 0.8, 0.5)  # semantic, pitch, the others
_ALIGNMENT_WEIGHTS = (0.3, 0.1)  # first and second half
_BALANCE_WEIGHT = 0.01


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        rate: peak learning rate; it falls linearly to zero over the run.
        minutes: of training, over all parts of the run; or
        steps: number of steps instead, if not 0.
        rows: padded rows of a batch.
        round_clips: clips between two checks for new shards.
        save_minutes: between checkpoints.
        seed: of everything random.
        device: "cpu" or "cuda".
        autocast: compute matrices in bfloat16.
        worker, workers: this process's number, and how many share every step; each computes the
            gradients of a batch of its own.
    """

    rate: float = 2e-3
    minutes: float = 90.0
    steps: int = 0
    rows: int = 2200
    round_clips: int = 2000
    save_minutes: float = 4.0
    seed: int = 0
    device: str = "cpu"
    autocast: bool = True
    worker: int = 0
    workers: int = 1


class Data:
    """Utterances of the shards that have codes, and the order in which they are met."""

    def __init__(self, folder: Path, lexicon: Lexicon) -> None:
        self.folder, self.lexicon = folder, lexicon
        self.utterances: list[Utterance] = []
        self.validation: list[Utterance] = []
        self.shards = 0

    def look(self, most: int | None = None) -> None:
        """Reads shards that were not there before, up to ``most`` in all."""
        for path in shard_files(self.folder)[self.shards : most]:
            coded = codes_path(path)
            if not coded.exists():
                break
            shard, codes = load_shard(path), np.load(coded)
            for clip, start in zip(shard.clips, shard.starts(), strict=True):
                made = utterance(clip, codes[start : start + clip.frames], self.lexicon)
                (self.utterances if trained_on(clip) else self.validation).append(made)
            self.shards += 1


class Training:
    """A run: model, optimizer and how far it got."""

    def __init__(
        self,
        folder: Path,
        data: Data,
        settings: Settings,
        start: Path | None = None,
        sizes: dict[str, Any] | None = None,
    ) -> None:
        """Begins a run.

        Args:
            folder: for checkpoint and curve.
            data: to train on.
            settings: how.
            start: voice to begin from, or None for random weights.
            sizes: ``config.json``, if not the nano voice's.
        """
        torch.manual_seed(settings.seed)
        self.folder, self.data, self.settings = folder, data, settings
        self.device = torch.device(settings.device)
        config = parse_model_config(sizes or config_json())
        self.model = LanguageModel(config).to(self.device)
        if start is not None:
            self.model.load_state_dict(read_voice(start, config, settings.seed))
        self.optimizer = torch.optim.AdamW(
            _groups(self.model), lr=settings.rate, betas=(0.9, 0.96), eps=1e-8, fused=True
        )
        self.step, self.rows = 0, 0
        self.elapsed = 0.0  # seconds
        self.round, self.at, self.shards = 0, 0, 0
        self.losses: list[list[float]] = []

    @property
    def checkpoint(self) -> Path:
        return self.folder / "language.pt"

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return share_done(self.settings, self.step, self.elapsed)

    def resume(self) -> None:
        """Resumes from the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return
        saved: dict[str, Any] = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for name in ("step", "rows", "elapsed", "round", "at", "shards"):
            setattr(self, name, saved[name])
        log.info("resumed at step %d after %.1f min", self.step, self.elapsed / 60)

    def save(self) -> None:
        if self.settings.worker:
            return  # they are all alike
        save_whole(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "settings": asdict(self.settings),
                **{
                    name: getattr(self, name)
                    for name in ("step", "rows", "elapsed", "round", "at", "shards")
                },
            },
            self.checkpoint,
        )

    def run(self) -> None:
        """Trains to the end of the run, saving now and then."""
        saved = last = time.monotonic()
        while self.progress < 1:
            for batch in self._round():
                self._train(batch)
                now = time.monotonic()
                self.elapsed, last = self.elapsed + now - last, now
                self._agree()
                if self.step % _REPORT == 0:
                    self._write("training", np.mean(self.losses, 0).tolist())
                    self.losses.clear()
                if self.step % _VALIDATE == 0:
                    self._write("validation", self.validate())
                if now - saved > 60 * self.settings.save_minutes:
                    self.save()
                    saved = now
                if self.progress >= 1:
                    break
        self._write("validation", self.validate())
        self.save()

    def _agree(self) -> None:
        """Lets every worker follow the first one's clock, and with it rate and end."""
        if self.settings.workers > 1:
            clock = torch.tensor(self.elapsed, dtype=torch.float64)
            together.broadcast(clock, 0)
            self.elapsed = float(clock)

    def _share_gradients(self) -> None:
        """Gives every worker the mean of all workers' gradients."""
        if self.settings.workers == 1:
            return
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        together.all_reduce(flat)
        flat /= self.settings.workers
        for gradient, mean in zip(
            gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))

    def _round(self) -> Iterator[list[list[list[int]]]]:
        """Batches of the present round, from where it was left."""
        if self.at == 0:
            self.data.look()
            self.shards = self.data.shards
        else:
            self.data.look(self.shards)
        if not self.data.utterances:
            raise FileNotFoundError(f"{self.data.folder} holds no shards with codes yet")
        random = np.random.default_rng((self.settings.seed, 1, self.round))
        count = len(self.data.utterances)
        # Every round takes the next part of one long shuffle per pass over what there is.
        turns = max(1, -(-count // self.settings.round_clips))
        lap, part = divmod(self.round, turns)
        order = np.random.default_rng((self.settings.seed, 2, lap)).permutation(count)
        plans = plan_scenes(self.data.utterances, order[part::turns].tolist(), random)
        batches = pack(plans, self.data.utterances, self.settings.rows, random)
        worker, workers = self.settings.worker, self.settings.workers
        for shared in range(self.at, max(1, len(batches) // workers)):
            self.at += 1
            yield batches[(shared * workers + worker) % len(batches)]
        self.round, self.at = self.round + 1, 0

    def _train(self, plans: list[list[list[int]]]) -> None:
        random = np.random.default_rng((self.settings.seed, 3, self.step, self.settings.worker))
        batch = build(plans, self.data.utterances, random).to(self.device)
        rate = self.settings.rate * min(1.0, (self.step + 1) / _WARMUP) * (1 - self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.autocast):
            losses = self.model.losses(batch)
        total = _total(losses, _ALIGNMENT_WEIGHTS[self.progress >= 0.5])
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        self._share_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if not bool(torch.isfinite(norm)):
            log.warning("step %d skipped: its gradient is not finite", self.step)
        else:
            self.optimizer.step()
        self.step += 1
        self.rows += batch.main.numel() * self.settings.workers
        self.losses.append([*_numbers(losses), float(losses.balance.detach()), float(norm)])

    @torch.no_grad()
    def validate(self) -> list[float]:
        """Mean losses of clips that are never trained on: each book's, then alignment's."""
        if not self.data.shards:
            self.data.look()
        held = self.data.validation[:_VALIDATION_CLIPS]
        found = []
        for first in range(0, len(held), _VALIDATION_BATCH):
            some = held[first : first + _VALIDATION_BATCH]
            plans = [[[number]] for number in range(len(some))]
            batch = build(plans, some, np.random.default_rng(0), augment=False).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.autocast):
                found.append(_numbers(self.model.losses(batch)))
        return [float(value) for value in np.mean(found, 0)]

    def _write(self, kind: str, values: list[float]) -> None:
        if self.settings.worker:
            return
        entry = {
            "kind": kind,
            "step": self.step,
            "minutes": round(self.elapsed / 60, 2),
            "rows": self.rows,
            "shards": self.data.shards,
            "rate": round(self.optimizer.param_groups[0]["lr"], 7),
            "losses": [round(value, 4) for value in values],
        }
        log.info("%s", json.dumps(entry))
        with (self.folder / "language.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _groups(model: LanguageModel) -> list[dict[str, Any]]:
    """Matrices with weight decay; tables, norms and the like without."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, weight in model.named_parameters():
        (matrices if weight.dim() == 2 and "embed" not in name else others).append(weight)
    return [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]


def _total(losses: Losses, alignment: float) -> Tensor:
    weights = [*_BOOK_WEIGHTS[:2], *[_BOOK_WEIGHTS[2]] * (len(losses.books) - 2)]
    total = alignment * losses.alignment + _BALANCE_WEIGHT * losses.balance
    for weight, loss in zip(weights, losses.books, strict=True):
        total = total + weight * loss
    return total


def _numbers(losses: Losses) -> list[float]:
    return [float(loss.detach()) for loss in (*losses.books, losses.alignment)]


def meet(settings: Settings, address: str = MEETING) -> None:
    """Waits until all workers of the run are there, if it has several.

    Args:
        settings: with this worker's number, and how many there are.
        address: where they meet, as torch.distributed's ``init_method``.
    """
    if settings.workers > 1:
        together.init_process_group(
            "gloo", init_method=address, rank=settings.worker, world_size=settings.workers
        )


def train(folder: Path, data: Path, settings: Settings, start: Path | None) -> None:
    """Trains in ``folder``, or resumes training.

    Args:
        folder: for checkpoint and curve.
        data: with shards, codes and ``lexicon.json``.
        settings: how.
        start: voice to begin from, or None for random weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meet(settings)
    training = Training(folder, Data(data, Lexicon.load(data / "lexicon.json")), settings, start)
    training.resume()
    training.run()
