"""Coverage-guided fuzzing of what decodes a client's bytes; needs ``atheris``.

    python tests/fuzz/decoder.py -max_total_time=300 [-seed=1] [FOLDER]
    python tests/fuzz/decoder.py crash-...              # once more what it found

The options are libFuzzer's. New inputs are kept in FOLDER, or nowhere.
"""

from __future__ import annotations

import atexit
import random
import shutil
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["rt_drama3.protocol", "rt_drama3.text.rules"]):
    import rt_drama3.protocol  # noqa: F401

from tests.fuzz import targets


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Changes an input: half of the time as a message, else as bytes."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return bytes(atheris.Mutate(data, most))
    return targets.mutated(data, rng)[:most]


def main() -> None:
    given = [Path(name) for name in sys.argv[1:] if not name.startswith("-")]
    folders = []
    if not given or given[0].is_dir():
        folders.append(tempfile.mkdtemp(prefix="rt-drama3-fuzz-"))
        atexit.register(shutil.rmtree, folders[0], ignore_errors=True)
        for number, data in enumerate(targets.seeds()):
            Path(folders[0], f"seed-{number:03d}").write_bytes(data)
    atheris.Setup([*sys.argv, *folders], targets.one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
