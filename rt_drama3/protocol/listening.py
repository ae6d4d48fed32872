"""ListenSession: one listener on /v1/listen, message by message, without a socket.

A listener hears what a server speaks to its clients: ``begin``, ``segment``, ``audio`` and ``end``
of one stream after the other or of several concurrently; docs/protocol.md describes their order,
schema/listen.json their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rt_drama3.protocol.events import Event, Mute
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.formats import FORMATS, split_audio
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.native_messages import VERSION, TypedSession
from rt_drama3.protocol.refusals import Refused, show
from rt_drama3.protocol.utterance import Utterance
from rt_drama3.protocol.wire import pack

MODES = ("mix", "queue")
RATES = FORMATS["pcm"].rates


@dataclass(frozen=True)
class ListenOptions:
    """What a listener asks for.

    Attributes:
        sample_rate: Hz.
        mode: ``mix``: streams as they come, concurrently. ``queue``: one after the other.
    """

    sample_rate: int
    mode: str

    @classmethod
    def read(cls, query: Mapping[str, str], facts: ModelFacts, mode: str) -> ListenOptions:
        """The options of a query.

        Args:
            query: of the address.
            facts: whose rate is the default.
            mode: the default.

        Raises:
            Refused: ``unsupported_format`` or ``bad_field``.
        """
        rate = query.get("sample_rate", str(facts.sample_rate))
        if rate not in {str(facts.sample_rate), *map(str, RATES)}:
            known = ", ".join(map(str, RATES))
            raise Refused("unsupported_format", f"sample_rate is {show(rate)}; known: {known}.")
        wanted = query.get("mode", mode)
        if wanted not in MODES:
            raise Refused("bad_field", f"mode is {show(wanted)}; one of {', '.join(MODES)}.")
        return cls(int(rate), wanted)


class ListenSession(TypedSession[Utterance]):
    """The server's side of one listener, which may send ``ping`` and ``stop``; see ``Session``."""

    _kinds = ("ping", "stop")

    def ready(self, options: ListenOptions, captions: bool) -> None:
        """Sends the first message."""
        message = {
            "type": "ready",
            "version": VERSION,
            "sample_rate": options.sample_rate,
            "channels": 1,
            "format": "pcm_s16le",
            "frame_ms": round(1e3 * self._facts.frame_seconds, 3),
            "mode": options.mode,
            "captions": captions,
        }
        self._send(message)

    def _stop(self, fields: Fields) -> list[Event]:
        return [Mute()]

    def _fail(self, utterance: Utterance, error: Refused) -> list[Event]:
        return []  # listeners have none


class ListenStream:
    """The messages of one stream to listeners of one rate.

    Args:
        name: the stream's name, unique in the server.
        request_id: the utterance's id, as in the server's logs.
        after: name of the stream that the same client's speech continues, if there is one.
        first_sample: first sample of its audio that these listeners get.
        limits: for the size of messages.
    """

    def __init__(
        self,
        name: str,
        request_id: str,
        after: str | None,
        first_sample: int = 0,
        limits: ProtocolLimits | None = None,
    ) -> None:
        self.name = name
        self.samples = first_sample
        self._seq = 0
        self._request_id = request_id
        self._after = after
        self._max_bytes = (limits or ProtocolLimits()).audio_bytes

    def begin(self) -> bytes:
        """It becomes audible."""
        return self._message("begin", request_id=self._request_id, after=self._after)

    def segment(self, text: str, first_sample: int) -> bytes:
        """This text is spoken from this sample on."""
        return self._message("segment", text=text, first_sample=first_sample)

    def audio(self, pcm: bytes) -> list[bytes]:
        """The next samples: signed 16-bit little-endian."""
        messages = []
        for part in split_audio(pcm, self._max_bytes, 2):
            messages.append(
                self._message("audio", seq=self._seq, first_sample=self.samples, pcm=part)
            )
            self._seq += 1
            self.samples += len(part) // 2
        return messages

    def end(self, cancelled: bool) -> bytes:
        """It has ended; cancelled: what was not played yet must not be heard."""
        return self._message("end", samples=self.samples, cancelled=cancelled)

    def _message(self, kind: str, **fields: Any) -> bytes:
        return pack({"type": kind, "stream": self.name, **fields})


def stop_message(fade_ms: float) -> bytes:
    """Asks listeners to drop what they have not played yet, with this fade."""
    return pack({"type": "stop", "fade_ms": fade_ms})
