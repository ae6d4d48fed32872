"""What importing this package loads."""

from __future__ import annotations

import subprocess
import sys


def test_importing_sinks_loads_neither_torch_nor_device_libraries() -> None:
    program = (
        "import sys, rt_drama3.sinks\n"
        "rooms = [f'rt_drama3.{room}' for room in ('engine', 'protocol', 'server', 'model')]\n"
        "print([name for name in ('torch', 'pyaudio', *rooms) if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
