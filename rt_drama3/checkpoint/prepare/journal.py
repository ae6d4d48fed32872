"""What of a package is on the disk, so that an interrupted call can be continued.

Next to the unfinished file: a line that says what it is made from, then one for each tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rt_drama3.checkpoint.prepare.errors import Squares
from rt_drama3.errors import CheckpointError

Identity = Mapping[str, Mapping[str, Any]]


class Journal:
    """The journal of one package.

    Args:
        path: of the journal.
        identity: what the package is made from, in sections of names and values.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path, self._identity = path, identity

    def begin(self) -> None:
        """Begins from scratch."""
        self._path.write_text(json.dumps(self._identity) + "\n", encoding="utf-8")

    def add(self, finished: list[Squares]) -> None:
        """Notes the next tensors, which must be on the disk."""
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(squares)) + "\n" for squares in finished)

    def remove(self) -> None:
        """Removes it: the package is complete."""
        self._path.unlink(missing_ok=True)

    def finished(self, out: Path) -> list[Squares]:
        """What an interrupted start has finished; nothing, if there was none.

        Args:
            out: the package, for messages.

        Raises:
            CheckpointError: it made the package from something else.
        """
        if not self._path.is_file():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        parsed = list(_objects(lines))
        if not parsed:
            return []
        changes = list(_differences(parsed[0], json.loads(json.dumps(self._identity))))
        if changes:
            raise CheckpointError(
                f"{out} was begun, but with something else: {'; '.join(changes)}. Give that again "
                "to continue, or --force to start from scratch."
            )
        return [Squares(**values) for values in parsed[1:]]


def _objects(lines: list[str]) -> Iterator[dict[str, Any]]:
    """The lines up to the first that was not written whole."""
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            return
        yield value


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for section in now:
        old, new = before.get(section, {}), now[section]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                if section == "options":
                    yield f"{name} was {old.get(name)} and is {new.get(name)}"
                else:
                    yield f"{section} {name} has changed"
