"""Codes from analysis: clusters, residuals, shards on disk."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from training.analysis import CLASSES, MELS, SLOTS, features, occupancy
from training.clips import FRAME_SAMPLES, load_shard, shard_files, trained_on
from training.codebooks import Codebooks, build, cluster, nearest, shard_features
from training.codes import encode_all


def test_features_have_one_row_per_frame() -> None:
    samples = torch.randn(7 * FRAME_SAMPLES, generator=torch.Generator().manual_seed(0))
    found = features(samples)
    assert found.shape == (7, SLOTS * MELS)
    later = features(torch.cat([torch.zeros(2 * FRAME_SAMPLES), samples]))
    torch.testing.assert_close(later[3:], found[1:], atol=1e-4, rtol=0)  # moves with the sound


def test_occupancy_covers_every_half_frame(shards: Path) -> None:
    clip = load_shard(shard_files(shards)[0]).clips[0]
    found = occupancy(clip).view(clip.frames, 2, len(CLASSES))
    torch.testing.assert_close(found.sum(-1), torch.ones(clip.frames, 2))
    assert found[0, 0, 0] > 0.9  # the pause before the first sound
    spoken = {CLASSES[index] for index in found.sum((0, 1)).nonzero().flatten().tolist()}
    assert spoken <= set(clip.sentences[0].phones) | {" "}


def test_clusters_are_found() -> None:
    random = torch.Generator().manual_seed(1)
    centres = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    points = centres.repeat(40, 1) + 0.1 * torch.randn(120, 2, generator=random)
    found = cluster(points, rounds=12, seed=0, count=3)
    assert (torch.cdist(centres, found).min(1).values < 0.2).all()
    assert len(nearest(centres, found).unique()) == 3


def test_codes_come_nearer_with_every_book(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(2)
    mels = torch.randn(3000, SLOTS * MELS, generator=random)
    phones = torch.zeros(3000, 2 * len(CLASSES))
    books = build(mels, phones)
    books.save(tmp_path / "books.pt")
    books = Codebooks.load(tmp_path / "books.pt")
    codes = books.encode(mels, phones, torch.arange(3000) % 236)
    assert codes.shape == (3000, 5)
    assert torch.equal(codes[:, 1], torch.arange(3000) % 236)
    left = books.components(mels) - books.centres[codes[:, 0]]
    sizes = [left.square().mean()]
    for number, book in enumerate(books.residual):
        left = left - book[codes[:, 2 + number]]
        sizes.append(left.square().mean())
    assert all(after < before for before, after in pairwise(sizes))


def test_shards_round_trip_and_are_coded_once(shards: Path, tmp_path: Path) -> None:
    for path in shards.glob("clips_*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    paths = shard_files(tmp_path)
    shard = load_shard(paths[0])
    assert shard.starts()[-1] + shard.clips[-1].frames == len(shard.pitch)
    assert len(shard.pcm) == len(shard.pitch) * FRAME_SAMPLES
    assert sum(not trained_on(clip) for clip in shard.clips) == 1  # line 99
    pairs = [shard_features(load_shard(path)) for path in paths]
    mels, phones = (torch.cat(part) for part in zip(*pairs, strict=True))
    many = torch.cat([mels] * 4) + 0.01 * torch.randn(4 * len(mels), mels.shape[1])
    books = build(many, torch.cat([phones] * 4))
    encode_all(tmp_path, books)
    written = tmp_path / "codes_0000.npy"
    codes = np.load(written)
    assert np.array_equal(codes[:, 1], shard.pitch)
    before = written.stat().st_mtime_ns
    encode_all(tmp_path, books)
    assert written.stat().st_mtime_ns == before
