"""Ownership of virtual microphones: dead, running and concurrently creating processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rt_drama3.errors import SinkError
from rt_drama3.sinks import MicSink, PcmFormat, virtual_mic
from rt_drama3.sinks import pactl as control
from tests.sinks.private_pulse import SECONDS, Daemon, daemon, needs_pulse, wait_until

pytestmark = [
    needs_pulse,
    pytest.mark.serial,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with daemon(monkeypatch) as running:
        yield running


def test_microphone_of_a_dead_process_gets_a_new_owner(server: Daemon) -> None:
    program = (
        "import os\nfrom rt_drama3.sinks import virtual_mic\nvirtual_mic.create()\nos._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=2 * SECONDS)
    (left,) = virtual_mic.existing()
    mic = virtual_mic.create(own=True)
    assert mic.ours
    assert mic.modules != left.modules
    assert virtual_mic.existing() == [mic]
    # Another process plays into it and exits: it must not remove it.
    program = (
        "from rt_drama3.sinks import MicSink, PcmFormat\n"
        "with MicSink() as sink:\n    sink.open(PcmFormat(48_000))\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=2 * SECONDS, check=True)
    assert virtual_mic.existing() == [mic]


def test_microphone_of_a_dead_process_is_not_replaced_while_played_into(server: Daemon) -> None:
    program = (
        "import os\nfrom rt_drama3.sinks import virtual_mic\nvirtual_mic.create()\nos._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=2 * SECONDS)
    (left,) = virtual_mic.existing()
    with MicSink(stall_seconds=SECONDS) as sink:
        sink.open(PcmFormat(48_000))
        wait_until(lambda: virtual_mic.in_play(left), "the stream")
        assert virtual_mic.create(own=True) == left
        with pytest.raises(SinkError, match="has exited, but another one plays into it"):
            virtual_mic.create(keep=True)
    assert virtual_mic.existing() == []


def test_running_process_keeps_its_microphone(server: Daemon) -> None:
    mic = virtual_mic.create()
    with pytest.raises(SinkError, match=f"cannot be kept: it belongs to process {os.getpid()}"):
        virtual_mic.create(keep=True)
    assert virtual_mic.existing() == [mic]


def test_concurrent_creation_makes_one_microphone(server: Daemon) -> None:
    program = "from rt_drama3.sinks import virtual_mic\nvirtual_mic.create(keep=True)\n"
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]
    assert [process.wait(2 * SECONDS) for process in processes] == [0] * 4
    assert len(virtual_mic.existing()) == 1
    assert len([found for found in control.modules() if "rt-drama3" in found.arguments]) == 2


def test_process_that_holds_the_lock_is_reported(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_mic, "_LOCK_SECONDS", 0.0)
    alone = virtual_mic._creation_lock()
    with (
        alone,
        pytest.raises(SinkError, match=r"has been creating a microphone .*\.lock"),
    ):
        virtual_mic.create()
    assert virtual_mic.create().ours
