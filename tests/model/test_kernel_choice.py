"""When the GPU operators are taken, and that they say no in time."""

from __future__ import annotations

import importlib.util
import shutil
import sys

import pytest
import torch

from rt_drama3.model import kernels


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything."""
    monkeypatch.delenv("RT_DRAMA3_KERNELS", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "gcc" else None)


@pytest.mark.usefixtures("complete")
def test_kernels_need_triton_and_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels._available()
    monkeypatch.setenv("CC", "nowhere-cc")
    assert not kernels._available()
    monkeypatch.delenv("CC")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not kernels._available()
    monkeypatch.setattr(sys, "platform", "win32")
    assert kernels._available()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not kernels._available()


@pytest.mark.usefixtures("complete")
def test_kernels_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RT_DRAMA3_KERNELS", "0")
    assert not kernels._available()


def test_a_cpu_never_takes_them() -> None:
    assert not kernels.usable(torch.zeros(1))
