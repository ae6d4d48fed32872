"""A checkpoint that can only speak a little at a time says so, and gets no more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rt_drama3 import Drama3
from rt_drama3.checkpoint import read_voice_config
from rt_drama3.config import SegmentConfig
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.errors import CheckpointError
from tests.small import heard

TEXT = (
    "The old lighthouse stood at the end of a narrow road, and every evening a man walked up the "
    "stairs to light the lamp. He had done this for thirty years, in summer and in winter. When "
    "the weather was good, he sat outside and counted the boats that came home."
)


def test_segment_sizes_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    assert read_voice_config(tmp_path).segments == SegmentConfig(300, True)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"piece_bytes": 90, "remembers_pieces": False}))
    assert read_voice_config(tmp_path).segments == SegmentConfig(90, False)


@pytest.mark.parametrize("value", [63, "110", 110.5, True, None])
def test_segment_sizes_that_cannot_work_are_refused(tmp_path: Path, value: Any) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"piece_bytes": value}))
    with pytest.raises(CheckpointError, match="piece_bytes is"):
        read_voice_config(tmp_path)


@pytest.mark.parametrize("remembered", [False, True])
def test_segments_are_no_longer_and_see_what_they_may(
    nano: Drama3, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    seen: list[int] = []
    build = nano.prompts.build

    def watched(text: str, references: Any = (), history: Any = (), **settings: Any) -> Any:
        seen.append(len(history))
        return build(text, references, history, **settings)

    monkeypatch.setattr(nano.prompts, "build", watched)
    loaded = replace(nano.loaded, segments=SegmentConfig(110, remembered))
    with Engine(loaded, EngineConfig(step_mode="eager")) as engine:
        _, summary = heard(engine.open(SpeechRequest(TEXT, seed=1, max_frames=400)))
    assert len(summary.segments) >= 3
    assert all(len(text.encode()) <= 110 for text, _ in summary.segments)
    assert max(seen) == (2 if remembered else 0)
