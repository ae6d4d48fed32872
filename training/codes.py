"""Stage 4: codes of the teacher's clips, and the lexicon of how it reads words."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy as np

from training import text
from training.clips import codes_path, load_shard, shard_files
from training.codebooks import Codebooks
from training.lexicon import Lexicon, pronunciations

log = logging.getLogger(__name__)


def encode_all(folder: Path, codebooks: Codebooks, wait_seconds: float = 0) -> None:
    """Writes the codes of every shard that has none.

    Args:
        folder: with the shards.
        codebooks: from ``codebooks``.
        wait_seconds: keep checking for new shards until none has appeared for this long.
    """
    idle = time.monotonic()
    while True:
        for path in shard_files(folder):
            target = codes_path(path)
            if target.exists():
                continue
            codes = codebooks.encode_shard(load_shard(path)).numpy().astype(np.int16)
            part = target.with_suffix(".part.npy")
            np.save(part, codes)
            os.replace(part, target)
            log.info("%s: %d frames", target.name, len(codes))
            idle = time.monotonic()
        if time.monotonic() - idle >= wait_seconds:
            return
        time.sleep(min(10.0, wait_seconds))


def write_lexicon(folder: Path) -> None:
    """Writes ``lexicon.json``: the teacher's reading of the common words, if it is not there yet.

    It does not change during a training run; delete the file to create a new one.
    """
    target = folder / "lexicon.json"
    if target.exists():
        return
    from hibari.g2p import G2P

    reader = G2P()
    _, words = text.load(folder / "text.json")
    alone = {
        word: "".join(t.phonemes or "" for t in reader.phonemize_tokens(reader.tokenize(word)))
        for word in words
    }
    clips = (clip for path in shard_files(folder) for clip in load_shard(path).clips)
    Lexicon(pronunciations(clips, words, alone)).save(target)
