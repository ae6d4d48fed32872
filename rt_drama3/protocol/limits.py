"""What a server is (``ModelFacts``) and what it accepts (``ProtocolLimits``): plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rt_drama3.errors import ConfigError

SMALLEST_AUDIO = 1_024
LARGEST_AUDIO = 65_536


@dataclass(frozen=True)
class ModelFacts:
    """What clients learn about the model behind the server.

    Attributes:
        name: the checkpoint's name.
        sample_rate: the codec's, Hz.
        frame_samples: samples of one frame at that rate.
        num_codebooks: codes of one frame.
    """

    name: str = "nano"
    sample_rate: int = 44_100
    frame_samples: int = 2_048
    num_codebooks: int = 10

    @property
    def frame_seconds(self) -> float:
        """Duration of one frame."""
        return self.frame_samples / self.sample_rate


@dataclass(frozen=True)
class ProtocolLimits:
    """The limits for clients; configurable.

    Attributes:
        message_bytes: of one incoming message or HTTP body; references ride in it. The WebSocket
            layer should refuse only above this, so that clients get the error and not just a
            closed connection.
        items: values in one message or JSON body, counting keys and those inside others. In JSON,
            where takes have their codes as lists, a row of codes counts as one.
        nesting: maps and lists inside each other, the message itself included.
        message_characters: of one ``text`` message.
        pending_characters: of text that waits to be spoken, and of the text of an HTTP request.
        transcript_characters: of a reference or of an instruction.
        references: voices or clips in one request, and turns of history.
        reference_bytes: of one clip, encoded.
        reference_seconds: of one clip.
        max_seconds: the longest utterance that a client may ask for by ``max_seconds``.
        audio_bytes: of audio in one outgoing message, which stays below 64 KiB as a whole.
        messages_per_second: what a connection may send for long.
        message_burst: what it may send in one burst.
        errors: refused messages between two accepted starts, before the connection is ended.
        late_messages: text for an utterance that ended, dropped without an error.
        idle_seconds: without a message of the client and without audio for it, also where an
            utterance is open, before the server may close. It is only announced here; the owner of
            the socket enforces it.
    """

    message_bytes: int = 16 << 20
    items: int = 4_096
    nesting: int = 6
    message_characters: int = 65_536
    pending_characters: int = 262_144
    transcript_characters: int = 4_096
    references: int = 16
    reference_bytes: int = 12 << 20
    reference_seconds: float = 60.0
    max_seconds: float = 600.0
    audio_bytes: int = 60 << 10
    messages_per_second: float = 5_000.0
    message_burst: int = 50_000
    errors: int = 20
    late_messages: int = 1_000
    idle_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Refuses limits that no client could respect."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ConfigError(f"{field.name} is {value!r}; it must be above 0.")
        # 1 KiB is left for what surrounds the audio; a multiple of 4 never cuts a sample.
        most = LARGEST_AUDIO - 1_024
        if not SMALLEST_AUDIO <= self.audio_bytes <= most or self.audio_bytes % 4:
            raise ConfigError(
                f"audio_bytes is {self.audio_bytes}; a multiple of 4 in {SMALLEST_AUDIO}..{most} "
                "is needed."
            )
