"""Settings of the service that can be changed while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

from pipecat.services.settings import TTSSettings
from pipecat.utils.types import NOT_GIVEN, NotGiven, is_given

from rt_drama3_client import PreviousTake, Reference, Take, Turn, VoiceOptions
from rt_drama3_client.clips import Audio


def _open() -> NotGiven:
    return NOT_GIVEN


@dataclass
class RtDrama3TTSSettings(TTSSettings):
    """Speech options; see ``rt_drama3_client.Options`` for their meaning.

    None uses the server's default. ``model`` and ``language`` are ignored: a server has one model,
    which detects the language from the text.
    """

    references: Sequence[Reference | tuple[str, Audio] | Take] | NotGiven | None = field(
        default_factory=_open
    )
    history: Sequence[Turn | Take] | NotGiven | None = field(default_factory=_open)
    previous_takes: Sequence[Take | PreviousTake] | NotGiven | None = field(default_factory=_open)
    guidance: float | NotGiven | None = field(default_factory=_open)
    steering: Sequence[tuple[str, float]] | NotGiven | None = field(default_factory=_open)
    gain_db: float | NotGiven | None = field(default_factory=_open)
    temperature: float | NotGiven | None = field(default_factory=_open)
    head_temperature: float | NotGiven | None = field(default_factory=_open)
    top_p: float | NotGiven | None = field(default_factory=_open)
    top_k: int | NotGiven | None = field(default_factory=_open)
    repetition_aware: bool | NotGiven | None = field(default_factory=_open)
    seed: int | NotGiven | None = field(default_factory=_open)
    max_seconds: float | NotGiven | None = field(default_factory=_open)
    normalize: Literal["auto", "on", "off"] | NotGiven | None = field(default_factory=_open)


# Pipecat's fields without effect here.
IGNORED = ("model", "language")
_NAMES = tuple(VoiceOptions.__annotations__)


def complete(settings: RtDrama3TTSSettings | None) -> RtDrama3TTSSettings:
    """Returns the settings with None for missing values, as Pipecat requires in a service."""
    names = [one.name for one in fields(RtDrama3TTSSettings) if one.name != "extra"]
    whole = RtDrama3TTSSettings(**dict.fromkeys(names, cast(Any, None)))
    if settings is not None:
        whole.apply_update(settings)
    return whole


def voice_options(settings: RtDrama3TTSSettings) -> VoiceOptions:
    """Converts the settings to the client's options."""
    found = {name: getattr(settings, name) for name in _NAMES}
    return cast(VoiceOptions, {name: value for name, value in found.items() if is_given(value)})
