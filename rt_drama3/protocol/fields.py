"""Typed access to a client's map: every value is checked, every error names field and value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rt_drama3.protocol.refusals import Refused, show

MAX_UNKNOWN = 20  # names that are reported


class Fields:
    """One map of a message. A field that is null counts as not given.

    Args:
        values: the map.
        where: its name in messages, "" for the message itself.
    """

    def __init__(self, values: Mapping[str, object], where: str = "") -> None:
        self._values = values
        self._where = where
        self._known: set[str] = set()

    def value(self, name: str) -> object:
        """The value as it was sent, None if it was not."""
        self._known.add(name)
        return self._values.get(name)

    def unknown(self) -> tuple[str, ...]:
        """Names of fields that were not read: some of them, shortened."""
        names = [name for name in self._values if name not in self._known]
        return tuple(show(name) for name in names[:MAX_UNKNOWN])

    def refuse(self, name: str, wanted: str, code: str = "bad_field") -> Refused:
        """An error about a field."""
        found = show(self._values.get(name))
        return Refused(code, f"{self.path(name)} is {found}; {wanted}.")

    def text(self, name: str, longest: int) -> str | None:
        """A string of ``longest`` characters or fewer."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str | memoryview):  # a view: see wire.parse_json
            raise self.refuse(name, "a string is needed")
        if isinstance(value, memoryview) or len(value) > longest:
            raise Refused(
                "text_too_long",
                f"{self.path(name)} has {len(value)} characters; the limit is {longest}.",
            )
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false is needed")
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number in a range; 24000.0 is one."""
        value = self.value(name)
        if value is None:
            return None
        wanted = f"a whole number in {low}..{high} is needed"
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, wanted)
        return value

    def number(self, name: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A finite number in a range; with ``above``, the lower end itself is out."""
        value = self.value(name)
        if value is None:
            return None
        wanted = f"a number {'above' if above else 'from'} {low:g} to {high:g} is needed"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, wanted)
        if not low <= value <= high or (above and value == low) or not math.isfinite(value):
            raise self.refuse(name, wanted)
        return float(value)

    def choice(self, name: str, options: Sequence[str], code: str = "bad_field") -> str | None:
        """One of some strings."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in options:
            raise self.refuse(name, f"one of {', '.join(options)} is needed", code)
        return value

    def map(self, name: str) -> Fields | None:
        """A map inside this one."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, "a map is needed")
        return Fields(value, self.path(name))

    def items(self, name: str, most: int) -> list[object]:
        """A list, empty when it is not given."""
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.refuse(name, "a list is needed")
        if len(value) > most:
            raise Refused(
                "bad_field", f"{self.path(name)} has {len(value)} entries; the limit is {most}."
            )
        return value

    def maps(self, name: str, most: int) -> list[Fields]:
        """A list of maps, empty when it is not given."""
        return [
            self.entry(name, number, value) for number, value in enumerate(self.items(name, most))
        ]

    def entry(self, name: str, number: int, value: object) -> Fields:
        """A map that is an entry of a list."""
        where = f"{self.path(name)}[{number}]"
        if not isinstance(value, dict):
            raise Refused("bad_field", f"{where} is {show(value)}; a map is needed.")
        return Fields(value, where)

    def path(self, name: str) -> str:
        """A field as messages name it: with the map that it is in."""
        return f"{self._where}.{name}" if self._where else name
