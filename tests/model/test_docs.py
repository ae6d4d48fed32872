"""The page on the model has the sections that the code refers to, and the keys that it reads."""

from __future__ import annotations

import re
from pathlib import Path

from rt_drama3.checkpoint.config_files import _CODEC_KEYS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")


def test_every_section_that_the_code_names_exists() -> None:
    sections = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", PAGE, re.MULTILINE))
    named: dict[str, str] = {}
    for path in sorted((ROOT / "rt_drama3").rglob("*.py")):
        text = re.sub(r"\n\s*(# )?", " ", path.read_text(encoding="utf-8"))
        for found in re.finditer(r"docs/model\.md, (\d+(?:\.\d+)?)(?: and (\d[\d.]*\d|\d))?", text):
            named.update(dict.fromkeys(filter(None, found.groups()), path.name))
    assert len(named) > 8
    assert {n: file for n, file in named.items() if n not in sections} == {}


def test_it_names_every_key_of_the_codec() -> None:
    assert [key for key in _CODEC_KEYS if f"`{key}`" not in PAGE] == []
