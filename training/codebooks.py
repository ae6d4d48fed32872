"""Codebooks from analysis: what each of a frame's codes means, found by clustering.

Code 0 is a phoneme-aware cluster of the frame's log-mels, code 1 pitch and glottal phase (see
``phase_lock``), the others a residual quantisation of the log-mels. Nothing here is learned by
gradient: language model and codec can both be trained from the start, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.analysis import MELS, SLOTS, features, occupancy, to_float
from training.clips import FRAME_SAMPLES, Shard

CODES = 512
BOOKS = 5  # semantic, pitch, three residual
COMPONENTS = 64
_PHONE_WEIGHT = 0.45
_ROUNDS, _RESIDUAL_ROUNDS = 25, 20


@dataclass(frozen=True, eq=False)
class Codebooks:
    """Clusters.

    Attributes:
        mean: ``[256]``, of the features.
        basis: ``[256, COMPONENTS]``, principal components.
        phone_weight: weight of the occupancy relative to the components.
        semantic: ``[512, COMPONENTS + occupancy]``, centres that code 0 is chosen by.
        centres: ``[512, COMPONENTS]``, mean components of each semantic cluster.
        residual: ``[3, 512, COMPONENTS]``.
    """

    mean: Tensor
    basis: Tensor
    phone_weight: float
    semantic: Tensor
    centres: Tensor
    residual: Tensor

    def components(self, mels: Tensor) -> Tensor:
        """Features ``[n, 256]`` as principal components ``[n, COMPONENTS]``."""
        return (mels - self.mean) @ self.basis

    def encode(self, mels: Tensor, phones: Tensor, pitch: Tensor) -> Tensor:
        """Codes of frames.

        Args:
            mels: ``[n, 256]`` from ``features``.
            phones: ``[n, 2 * classes]`` from ``occupancy``.
            pitch: int64 ``[n]``.

        Returns:
            int64 ``[n, BOOKS]``.
        """
        left = self.components(mels)
        first = nearest(torch.cat([left, self.phone_weight * phones], 1), self.semantic)
        left = left - self.centres[first]
        codes = [first, pitch]
        for book in self.residual:
            code = nearest(left, book)
            left = left - book[code]
            codes.append(code)
        return torch.stack(codes, 1)

    def encode_shard(self, shard: Shard) -> Tensor:
        """Codes of all frames of a shard, int64 ``[frames, BOOKS]``."""
        mels, phones = shard_features(shard)
        return self.encode(mels, phones, torch.from_numpy(shard.pitch))

    def save(self, path: Path) -> None:
        torch.save(vars(self), path)

    @classmethod
    def load(cls, path: Path) -> Codebooks:
        return cls(**torch.load(path, weights_only=True))


def shard_features(shard: Shard) -> tuple[Tensor, Tensor]:
    """Log-mel features and phoneme occupancy of all frames of a shard."""
    mels, phones = [], []
    for clip, start in zip(shard.clips, shard.starts(), strict=True):
        begin = start * FRAME_SAMPLES
        samples = to_float(shard.pcm[begin : begin + clip.frames * FRAME_SAMPLES])
        mels.append(features(samples))
        phones.append(occupancy(clip))
    return torch.cat(mels), torch.cat(phones)


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Index of the nearest centre of every point."""
    half = centres.square().sum(1) / 2
    return torch.cat([(p @ centres.T - half).argmax(1) for p in points.split(32_768)])


def cluster(points: Tensor, rounds: int, seed: int, count: int = CODES) -> Tensor:
    """k-means; centres with fewer than five points move to a random point, but not at the end."""
    random = torch.Generator().manual_seed(seed)
    centres = points[torch.randperm(len(points), generator=random)[:count]].clone()
    for turn in range(rounds):
        chosen = nearest(points, centres)
        sizes = torch.bincount(chosen, minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, chosen, points)
        means = sums / sizes.clamp(min=1)[:, None]
        centres = torch.where(sizes[:, None] > 0, means, centres)
        lonely = (sizes < 5).nonzero().flatten()
        if len(lonely) and turn < rounds - 3:
            picked = torch.randint(0, len(points), (len(lonely),), generator=random)
            centres[lonely] = points[picked]
    return centres


def build(mels: Tensor, phones: Tensor, seed: int = 0) -> Codebooks:
    """Clusters of some hours of frames (see ``Codebooks.encode`` for the arguments)."""
    assert mels.shape[1] == SLOTS * MELS
    random = torch.Generator().manual_seed(seed)
    mean = mels.mean(0)
    sample = (mels - mean)[torch.randperm(len(mels), generator=random)[:40_000]]
    _, _, directions = torch.linalg.svd(sample, full_matrices=False)
    basis = directions[:COMPONENTS].T.contiguous()
    parts = (mels - mean) @ basis
    weight = float(parts.square().sum(1).mean().sqrt()) * _PHONE_WEIGHT
    joined = torch.cat([parts, weight * phones], 1)
    semantic = cluster(joined, _ROUNDS, seed)
    chosen = nearest(joined, semantic)
    sizes = torch.bincount(chosen, minlength=CODES).clamp(min=1)
    centres = torch.zeros(CODES, COMPONENTS).index_add_(0, chosen, parts) / sizes[:, None]
    left = parts - centres[chosen]
    residual = []
    for number in range(1, BOOKS - 1):
        book = cluster(left, _RESIDUAL_ROUNDS, seed + number)
        left = left - book[nearest(left, book)]
        residual.append(book)
    return Codebooks(mean, basis, weight, semantic, centres, torch.stack(residual))
