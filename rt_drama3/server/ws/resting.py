"""What is sent when nothing is left to speak though no end was announced.

Clients of the Fish dialect flush and wait (Pipecat does, for hours). Without what the resampler
holds back, the last milliseconds of what they hear now would come as the first ones of what they
ask for next; and where their text had no words, they wait for some sound all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rt_drama3.engine.speech import Speech
from rt_drama3.server.outgoing import Outgoing

LOOK_SECONDS = 0.05  # between looks at the engine


async def send_held(
    speech: Speech,
    outgoing: Outgoing,
    wanted: Callable[[], bool],
    owed: Callable[[], bool],
    send: Callable[[bytes, int], None],
) -> None:
    """Runs beside the task that takes the chunks, on the same event loop.

    Args:
        speech: whose text may be spoken to its present end.
        outgoing: makes its bytes.
        wanted: whether no chunk is on its way through ``outgoing``, and more text may come.
        owed: whether silence is, since there was nothing to hear.
        send: takes bytes, and the samples at the output rate that they stand for.
    """
    while not speech.ended:
        await asyncio.sleep(LOOK_SECONDS)
        if wanted() and speech.resting and not speech.unread_seconds:
            data, samples = outgoing.breath() if owed() else outgoing.rest()
            if samples:
                send(data, samples)
