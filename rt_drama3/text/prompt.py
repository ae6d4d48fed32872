"""The prompt ``reference-bracket-v1`` as rows for the model (docs/architecture.md, 6).

A row is ``[main, c0, ..., c_last]``: a text token with zeros, or a frame of audio with its semantic
token in front. Every segment is tokenised on its own, since joined text has other tokens at the
seams. The system block depends on the references alone, so its rows come first and are counted:
whoever keeps the model's state behind them needs not feed them again. No torch in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rt_drama3.config import ModelConfig
from rt_drama3.errors import RequestError
from rt_drama3.text.directions import Tokenizer, undirected
from rt_drama3.text.rules import (
    check_part,
    check_text,
    flatten,
    reference_transcript,
    with_speaker_tag,
)
from rt_drama3.text.spoken import spoken_words

Rows = npt.NDArray[np.int64]

_SYSTEM = "<|im_start|>system\n"
_TASK = "convert the provided text to speech"
_TASK_WITH_REFERENCES = "convert the provided text to speech reference to the following:"
_USER = "<|im_start|>user\n"
_VOICE = "<|im_start|>assistant\n<|voice|>"
_END = "<|im_end|>\n"


@dataclass(frozen=True, eq=False)
class Prompt:
    """What the model reads before it speaks.

    Attributes:
        rows: int64 ``[rows, 1 + num_codebooks]``.
        system_rows: how many of them, from the first, form the system block with the references.
        text_rows: the rows of the text that is to be spoken, from the first and up to the last.
    """

    rows: Rows
    system_rows: int
    text_rows: tuple[int, int]


class PromptBuilder:
    """Makes prompts for one checkpoint.

    Args:
        tokenizer: of the checkpoint.
        config: of the checkpoint; gives the semantic band and the sizes of the codebooks.
        reads_directions: directions and speaker tags mean something to the checkpoint; to others
            only the words are given (``spoken_words``).
    """

    def __init__(
        self, tokenizer: Tokenizer, config: ModelConfig, reads_directions: bool = True
    ) -> None:
        self.tokenizer = tokenizer
        self.reads_directions = reads_directions
        self._config = config
        fixed = (_SYSTEM, _TASK, _TASK_WITH_REFERENCES, _USER, _VOICE, _END)
        self._fixed = {segment: self._text_rows(segment) for segment in fixed}

    def text_tokens(self, text: str) -> int:
        """How many tokens a text has by itself."""
        return len(self.tokenizer.encode(text).ids)

    def build(
        self,
        text: str,
        references: Sequence[tuple[str, npt.ArrayLike]] = (),
        history: Sequence[tuple[str, npt.ArrayLike]] = (),
        *,
        max_rows: int | None = None,
    ) -> Prompt:
        """The prompt that makes the model speak a text.

        Args:
            text: one chunk (see ``split_text``); line breaks within a speaker's turn become spaces.
            references: ``(transcript, codes)`` of voices to follow, in order; codes are integers
                ``[num_codebooks, frames]``.
            history: ``(text, codes)`` of earlier turns, in order.
            max_rows: refuse a longer prompt.

        Raises:
            RequestError: a text or codes cannot be used, or the prompt is longer than ``max_rows``.
        """
        system = [self._fixed[_SYSTEM]]
        system.append(self._fixed[_TASK_WITH_REFERENCES if references else _TASK])
        for number, (transcript, codes) in enumerate(references, 1):
            what = f"the transcript of reference {number}"
            said = reference_transcript(_turn(transcript, what))
            system.append(self._text_rows(f"\n\n[Reference {number}]\nText: {said}\nSpeech: "))
            system.append(self._audio_rows(codes, f"reference {number}"))
        system.append(self._fixed[_END])

        turns: list[Rows] = []
        for number, (said, codes) in enumerate(history, 1):
            turns += self._user_turn(said, f"the text of history {number}")
            turns += [self._audio_rows(codes, f"history {number}"), self._fixed[_END]]
        target = self._user_turn(text, "text")

        sizes = [sum(map(len, part)) for part in (system, turns, target)]
        if max_rows is not None and sum(sizes) > max_rows:
            raise RequestError(
                f"the prompt has {sum(sizes)} rows (references {sizes[0]}, history {sizes[1]}, "
                f"text {sizes[2]}), but at most {max_rows} fit. "
                "Shorten the longest of them (a second of audio has about 22 rows), or set the "
                "engine's `context` higher."
            )
        first = sizes[0] + sizes[1] + len(target[0])
        rows = np.concatenate(system + turns + target)
        return Prompt(rows, sizes[0], (first, first + len(target[1])))

    def twin(self, prompt: Prompt, text: str) -> Prompt | None:
        """The undirected twin of a prompt: the same one, its last text without directions.

        Both agree row for row up to the text. Earlier turns keep their directions: they tell how
        the audio beside them came to be.

        Args:
            prompt: what ``build`` made of the text.
            text: that text.

        Returns:
            None where the twin would be the same prompt: the text has no directions, the checkpoint
            is not given any, or its tokenizer passes over these.

        Raises:
            RequestError: without its directions the text cannot be used.
        """
        words = with_speaker_tag(_turn(text, "text"))
        bare = undirected(words)
        if bare == words or not self.reads_directions:
            return None
        check_part(bare, "the text without its directions")
        first, end = prompt.text_rows
        middle = self._text_rows(bare)
        rows = np.concatenate([prompt.rows[:first], middle, prompt.rows[end:]])
        if np.array_equal(rows, prompt.rows):
            return None
        return Prompt(rows, prompt.system_rows, (first, first + len(middle)))

    def _user_turn(self, text: str, what: str) -> list[Rows]:
        said = _turn(text, what)
        if not self.reads_directions:
            said = check_part(flatten(spoken_words(said)), f"{what} without its directions")
        words = self._text_rows(with_speaker_tag(said))
        return [self._fixed[_USER], words, self._fixed[_END], self._fixed[_VOICE]]

    def _text_rows(self, segment: str) -> Rows:
        ids = self.tokenizer.encode(segment).ids
        rows = np.zeros((len(ids), 1 + self._config.num_codebooks), dtype=np.int64)
        rows[:, 0] = ids
        return rows

    def _audio_rows(self, codes: npt.ArrayLike, what: str) -> Rows:
        frames = check_codes(codes, self._config, what)
        return np.concatenate([self._config.semantic_start + frames[:1], frames]).T


def _turn(text: str, what: str) -> str:
    check_text(text, what)
    return flatten(text)


def check_codes(codes: npt.ArrayLike, config: ModelConfig, what: str = "codes") -> Rows:
    """Codes as an int64 array ``[num_codebooks, frames]``.

    Args:
        codes: any integers that numpy can read, a torch tensor in host memory among them.
        config: of the checkpoint that is to read them.
        what: their name in the message.

    Raises:
        RequestError: not integers, not ``[num_codebooks, frames]``, no frames, or a code outside
            its codebook.
    """
    wanted = f"integers [{config.num_codebooks}, frames]"
    try:
        found = np.asarray(codes)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged; torch: not on the host
        raise RequestError(
            f"{what}: the codes are not an array in host memory ({error}). Give {wanted}."
        ) from error
    if found.ndim != 2 or found.shape[0] != config.num_codebooks:
        raise RequestError(f"{what}: the codes have shape {found.shape}. Give {wanted}.")
    if found.shape[1] == 0:
        raise RequestError(f"{what}: the codes are empty. Give at least one frame.")
    if found.dtype.kind not in "iu":
        raise RequestError(f"{what}: the codes are {found.dtype}. Give {wanted}.")
    last = config.tower.codebook_size - 1
    wrong = np.argwhere((found < 0) | (found > last))
    if len(wrong):
        book, frame = wrong[0]
        raise RequestError(
            f"{what}: the code of codebook {book}, frame {frame} is {found[book, frame]}, but this "
            f"checkpoint's codes run from 0 to {last}. Use codes made with this checkpoint."
        )
    return found.astype(np.int64)
