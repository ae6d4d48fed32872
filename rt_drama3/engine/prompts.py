"""PromptPreparer: builds the prompt of a stream's next segment, mostly off the device thread.

References take seconds to encode. They have an executor of their own, so that no segment waits for
the references of another stream.
"""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial

import numpy as np
import torch

from rt_drama3.engine.stream import Prompt, Scene, Stream
from rt_drama3.engine.voice_cache import voice_key
from rt_drama3.errors import DeviceError, RequestError
from rt_drama3.loading import LoadedModel
from rt_drama3.text import prompt as text_prompt
from rt_drama3.text.normalize import normalized
from rt_drama3.text.rules import frame_cap

MAX_PROMPT_ROWS = 8192


class PromptPreparer:
    """See the module docstring.

    Args:
        loaded: the checkpoint.
        context: rows that a slot holds.
        preparing, encoding: run what is fast, and what encodes audio.
    """

    def __init__(
        self, loaded: LoadedModel, context: int, preparing: Executor, encoding: Executor
    ) -> None:
        self._builder, self._references = loaded.prompts, loaded.references
        self._device = loaded.device
        self._frame_rate = loaded.codec.config.frame_rate
        self._context = context
        self._preparing, self._encoding = preparing, encoding

    def prepare(self, stream: Stream, here: bool) -> None:
        """Builds the next prompt; ``stream.scene.prepared`` is then set and the engine woken.

        Args:
            stream: with text.
            here: in the calling thread if that is fast, which saves a hand-over.
        """
        scene = stream.scene
        encodes = stream.first is None and bool(stream.request.references)
        encodes = encodes or any(take.codes is None for take in scene.takes)
        slow = encodes and not scene.settled
        if here and not slow:
            self._prepare(stream)
            return
        try:
            (self._encoding if slow else self._preparing).submit(self._prepare, stream)
        except RuntimeError:  # an executor takes no work once the interpreter goes down
            with stream.isolated():
                raise DeviceError("the program is ending; the stream was cut.") from None

    def _prepare(self, stream: Stream) -> None:
        with stream.isolated():
            if not stream.cancelled:
                if stream.playout.audio:
                    stream.playout.codec.prepare()
                self._settle(stream)
                stream.scene.prepared = self._prompt(stream)
                stream.wake()

    def _settle(self, stream: Stream) -> None:
        """Makes codes of the references and the earlier takes, once."""
        scene = stream.scene
        if scene.settled:
            return
        if stream.first is not None:
            _adopt(scene, stream.first)
        else:
            scene.voice = self._references.codes(stream.request.references)
        for take in scene.takes:
            codes = take.codes
            if codes is None:
                codes = self._references.clip(take.audio, f"the audio of {take.text[:40]!r}")
            scene.turns.append((take.text, codes))
        scene.settled = True

    def _prompt(self, stream: Stream) -> Prompt:
        text = stream.text.take()
        assert text is not None
        normalize = stream.text.normalizes
        cap = frame_cap(normalized(text) if normalize else text, self._frame_rate)
        prompt = self._build(stream, text, cap)
        second = None
        if stream.guidance > 0:
            second = self._builder.unconditional(prompt, text, normalize=normalize)
        second_rows = None if second is None else torch.from_numpy(second.rows).to(self._device)
        longest = max(len(prompt.rows), 0 if second_rows is None else len(second_rows))
        cap = min(cap, self._context - longest)
        if stream.request.max_frames is not None:
            cap = min(cap, stream.request.max_frames - stream.frames)
        return Prompt(
            text=text,
            rows=torch.from_numpy(prompt.rows).to(self._device),
            text_rows=prompt.text_rows,
            system_rows=prompt.system_rows,
            voice_key=voice_key(prompt.rows[: prompt.system_rows]),
            opening=self.opening(stream, text, prompt),
            cap=cap,
            unconditional=second_rows,
            unconditional_text_rows=(0, 0) if second is None else second.text_rows,
        )

    def opening(self, stream: Stream, text: str, prompt: text_prompt.Prompt) -> text_prompt.Rows:
        """The rows that the prompt after this one begins with; then come the codes of this one."""
        if len(stream.past()) < 2 or (stream.text.final and stream.text.empty):
            return prompt.rows
        assert stream.scene.voice is not None
        history = [*stream.earlier(), *stream.spoken[:1]]
        normalize = stream.text.normalizes
        return self._builder.build(text, stream.scene.voice, history, normalize=normalize).rows

    def _build(self, stream: Stream, text: str, frames: int) -> text_prompt.Prompt:
        """The prompt of a segment, with as much of the stream's past as leaves room for frames."""
        voice = stream.scene.voice
        assert voice is not None
        build = partial(self._builder.build, normalize=stream.text.normalizes)
        past = stream.past()
        longest = min(MAX_PROMPT_ROWS, self._context - 1)
        while past:
            prompt = build(text, voice, [*stream.earlier(), *past])
            if len(prompt.rows) <= min(longest, self._context - frames):
                return prompt
            del past[0]
        return build(text, voice, stream.earlier(), max_rows=longest)


def _adopt(scene: Scene, first: Stream) -> None:
    """Takes over the voice and the turns of a stream that spoke an earlier take.

    Raises:
        RequestError: it spoke nothing.
        RtDrama3Error: the error that ended it.
    """
    if first.failure is not None:
        raise first.failure
    text = first.request.text
    if not first.spoken:
        raise RequestError(
            f"the earlier take {text[:60]!r} has no speakable text; give one with words."
        )
    codes = np.concatenate([codes for _, codes in first.spoken], axis=1)
    scene.voice, scene.turns = first.scene.voice, [*first.scene.turns, (text, codes)]
