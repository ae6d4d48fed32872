"""PromptDesk: the next piece of a stream's text to the rows that the model will read.

It works on threads of its own, beside the device thread. No piece waits for the references of
another stream, which take seconds to encode: those have a thread to themselves.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from rt_drama3.engine.guidance import Direction
from rt_drama3.engine.stream import EngineStream, Phase
from rt_drama3.engine.voice_cache import voice_key
from rt_drama3.errors import DeviceError
from rt_drama3.loading import LoadedModel
from rt_drama3.system.threads import use_threads
from rt_drama3.text.prompt import Prompt, Rows
from rt_drama3.text.rules import frame_cap

MAX_PROMPT_ROWS = 8192


class PromptDesk:
    """See the module docstring.

    Args:
        loaded: the checkpoint.
        context: rows that a slot holds.
    """

    def __init__(self, loaded: LoadedModel, context: int) -> None:
        self._builder, self._references = loaded.prompts, loaded.references
        self._device = loaded.device
        self._frame_rate = loaded.codec.config.frame_rate
        self._context = context
        self._preparing = ThreadPoolExecutor(1, "rt-drama3-prepare")
        self._encoding = ThreadPoolExecutor(1, "rt-drama3-encode")
        for pool in (self._preparing, self._encoding):
            # Now, so that no request waits for its thread to start.
            pool.submit(use_threads, loaded.threads).result()

    def prepare(self, stream: EngineStream, alone: bool) -> None:
        """Has the prompt of the next piece built; the stream then waits for its slot.

        Args:
            stream: with text.
            alone: nobody is speaking, so that the device thread may do it and save a hand-over.
        """
        stream.phase = Phase.PREPARING
        direction = stream.direction
        slow = (stream.voice is None and bool(stream.request.references)) or (
            not direction.settled and any(take.codes is None for take in direction.takes)
        )
        if alone and not slow:
            stream.attempt(self._prepare)
        else:
            pool = self._encoding if slow else self._preparing
            try:
                pool.submit(stream.attempt, self._prepare)
            except RuntimeError:  # no pool takes work once the interpreter goes down
                stream.failure = DeviceError("the program is ending; the stream was cut.")

    def close(self, wait: bool = True) -> None:
        """Drops what waits, and ends the threads."""
        for pool in (self._preparing, self._encoding):
            pool.shutdown(wait=wait, cancel_futures=True)

    def _prepare(self, stream: EngineStream) -> None:
        if stream.cancelled:
            return
        if stream.request.audio:
            stream.codec.prepare()
        if stream.voice is None:
            stream.voice = self._references.codes(stream.request.references)
        if not stream.direction.settled:
            self._settle(stream.direction)
        piece = stream.text.next_piece()
        assert piece is not None
        stream.speech.count(stream.text.count)
        cap = frame_cap(piece, self._frame_rate)
        prompt = self._prompt(stream, piece, cap)
        stream.segments.append((piece, stream.frames))
        stream.speech.begin(piece, stream.frames)
        stream.voice_key = voice_key(prompt.rows[: prompt.system_rows])
        stream.rows = torch.from_numpy(prompt.rows).to(self._device)
        stream.system_rows, stream.read = prompt.system_rows, 0
        stream.opening = self._opening(stream, piece, prompt)
        guided = stream.direction.guidance > 0
        twin = self._builder.unconditional(prompt, piece) if guided else None
        longest = stream.direction.begin(prompt, twin, self._device)
        stream.cap = min(cap, self._context - longest)
        if stream.request.max_frames is not None:
            stream.cap = min(stream.cap, stream.request.max_frames - stream.frames)
        stream.phase = Phase.WAITING if stream.phase is Phase.PREPARING else stream.phase
        stream.wake()

    def _settle(self, direction: Direction) -> None:
        """Makes turns of the earlier takes."""
        for take in direction.takes:
            codes = take.codes
            if codes is None:
                codes = self._references.clip(take.audio, f"the audio of {take.text[:40]!r}")
            direction.turns.append((take.text, codes))
        direction.settled = True

    def _opening(self, stream: EngineStream, piece: str, prompt: Prompt) -> Rows:
        """What the prompt of the piece after this one begins with; this one's codes come then."""
        if len(stream.past()) < 2 or (stream.text.final and stream.text.empty()):
            return prompt.rows
        assert stream.voice is not None
        history = [*stream.earlier(), *stream.spoken[:1]]
        return self._builder.build(piece, stream.voice, history).rows

    def _prompt(self, stream: EngineStream, piece: str, frames: int) -> Prompt:
        """The prompt of a piece; of the stream's own past only what leaves room for its frames."""
        assert stream.voice is not None
        build, past = self._builder.build, stream.past()
        longest = min(MAX_PROMPT_ROWS, self._context - 1)
        while past:
            prompt = build(piece, stream.voice, [*stream.earlier(), *past])
            if len(prompt.rows) <= min(longest, self._context - frames):
                return prompt
            del past[0]
        return build(piece, stream.voice, stream.earlier(), max_rows=longest)
