"""Places: how many streams may be open, and which of them count as wanting to speak.

A client may hold a stream open long before it has something to say: some frameworks keep one for
each of their connections. Such a silent stream must not keep out those that speak. So a stream has
one of ``max_streams`` + ``max_queue`` places from its first text on until everything was heard, and
``KEPT_SECONDS`` longer, so that an answer whose next sentence is still being written stays whole.
With the next text its next turn begins, in which it queues like a newcomer. Silent streams have a
limit of their own, ``max_silent``.
"""

from __future__ import annotations

from collections.abc import Iterable

from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.stream import EngineStream, Phase
from rt_drama3.errors import Overloaded

KEPT_SECONDS = 5.0  # longer than a language model pauses within an answer
PAUSE_SECONDS = 2.0  # longer than it mostly does; who stops the server waits no longer


def has_place(stream: EngineStream, now: float) -> bool:
    """Whether a stream counts among those that speak, are listened to, or wait to speak."""
    if stream.phase is Phase.IDLE and stream.text.empty():
        return now - stream.wanted < KEPT_SECONDS or stream.speech.unread_seconds > 0
    return True


def check_place(
    streams: Iterable[EngineStream], config: EngineConfig, now: float, new: bool = False
) -> None:
    """Refuses when one more stream that speaks would be too many.

    Args:
        streams: that are open.
        config: settings.
        now: by the engine's clock.
        new: it is none of them.

    Raises:
        Overloaded: there are ``max_streams`` + ``max_queue`` of them, or with a new one there would
            be more open streams than may be in all.
    """
    limit = config.max_streams + config.max_queue
    counted = list(_counted(streams))
    taken = sum(has_place(stream, now) for stream in counted)
    if taken >= limit:
        raise Overloaded(
            f"{taken} streams speak or wait to, and at most {limit} may "
            "(max_streams + max_queue); retry later."
        )
    if new and len(counted) >= limit + config.max_silent:
        raise Overloaded(
            f"{len(counted)} streams are open, and at most {limit + config.max_silent} may be "
            "(max_streams + max_queue + max_silent); end those that are not needed."
        )


def check_silent(streams: Iterable[EngineStream], config: EngineConfig, now: float) -> None:
    """Refuses when one more stream without text would be too many.

    Raises:
        Overloaded: there are ``max_silent`` of them.
    """
    silent = sum(not has_place(stream, now) for stream in _counted(streams))
    if silent >= config.max_silent:
        raise Overloaded(
            f"{silent} streams wait for text, and at most {config.max_silent} may (max_silent); "
            "end those that are not needed, or open one when there is text."
        )


def _counted(streams: Iterable[EngineStream]) -> Iterable[EngineStream]:
    return (one for one in streams if not (one.cancelled or one.direction.inner))
