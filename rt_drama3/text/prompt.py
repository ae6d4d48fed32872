"""The prompt ``reference-bracket-v1`` as model input rows (docs/model.md, 6).

A row is ``[main, c0, ..., c_last]``: a text token with zeros, or an audio frame led by its semantic
token. Every part is tokenised separately, because the tokens of joined text differ at the seams.
The system block depends on the references alone, so its rows come first and are counted: the model
state after them can be cached and reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rt_drama3.config import ModelConfig
from rt_drama3.errors import RequestError
from rt_drama3.text.directions import Tokenizer, spoken_words, strip_directions
from rt_drama3.text.normalize import normalized
from rt_drama3.text.rules import (
    check_part,
    check_text,
    flatten,
    reference_transcript,
    with_speaker_tag,
)

Rows = npt.NDArray[np.int64]

_SYSTEM = "<|im_start|>system\n"
_TASK = "convert the provided text to speech"
_TASK_WITH_REFERENCES = "convert the provided text to speech reference to the following:"
_USER = "<|im_start|>user\n"
_VOICE = "<|im_start|>assistant\n<|voice|>"
_END = "<|im_end|>\n"


@dataclass(frozen=True, eq=False)
class Prompt:
    """The model input that precedes generation.

    Attributes:
        rows: int64 ``[rows, 1 + num_codebooks]``.
        system_rows: how many leading rows form the system block with the references.
        text_rows: half-open range of the rows of the text to speak.
    """

    rows: Rows
    system_rows: int
    text_rows: tuple[int, int]


class PromptBuilder:
    """Builds prompts for one checkpoint.

    Args:
        tokenizer: the checkpoint's tokenizer.
        config: the checkpoint's config; gives the semantic token range and the codebook sizes.
        reads_directions: whether the checkpoint understands directions and speaker tags; otherwise
            prompts contain only the words (``spoken_words``).
        normalizes: whether it needs text that is normalised; a request may ask for the opposite.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: ModelConfig,
        reads_directions: bool = True,
        normalizes: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.reads_directions, self.normalizes = reads_directions, normalizes
        self._config = config
        fixed = (_SYSTEM, _TASK, _TASK_WITH_REFERENCES, _USER, _VOICE, _END)
        self._fixed = {part: self._text_rows(part) for part in fixed}

    @property
    def directions_sound(self) -> bool:
        """Whether a direction alone may be heard, as ``[laughs]``: not if it knows only words."""
        return self.reads_directions and not self.normalizes

    def text_tokens(self, text: str) -> int:
        """Number of tokens of the text alone."""
        return len(self.tokenizer.encode(text).ids)

    def build(
        self,
        text: str,
        references: Sequence[tuple[str, npt.ArrayLike]] = (),
        history: Sequence[tuple[str, npt.ArrayLike]] = (),
        *,
        normalize: bool = False,
        max_rows: int | None = None,
    ) -> Prompt:
        """Builds the prompt for speaking a text.

        Args:
            text: one segment (see ``split_text``); line breaks within a turn become spaces.
            references: ``(transcript, codes)`` of the voices to clone, in order; codes are integers
                ``[num_codebooks, frames]``.
            history: ``(text, codes)`` of earlier turns, in order.
            normalize: write text and history as they are read aloud (``rt_drama3.text.normalize``).
            max_rows: limit for the whole prompt.

        Raises:
            RequestError: a text or codes are invalid, or the prompt is longer than ``max_rows``.
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
            turns += self._user_turn(said, f"the text of history {number}", normalize)
            turns += [self._audio_rows(codes, f"history {number}"), self._fixed[_END]]
        target = self._user_turn(text, "text", normalize)

        sizes = [sum(map(len, part)) for part in (system, turns, target)]
        if max_rows is not None and sum(sizes) > max_rows:
            raise RequestError(
                f"the prompt has {sum(sizes)} rows (references {sizes[0]}, history {sizes[1]}, "
                f"text {sizes[2]}); the limit is {max_rows}. "
                "Shorten the longest of them (a second of audio has about 22 rows), or set the "
                "engine's `context` higher."
            )
        first = sizes[0] + sizes[1] + len(target[0])
        rows = np.concatenate(system + turns + target)
        return Prompt(rows, sizes[0], (first, first + len(target[1])))

    def unconditional(self, prompt: Prompt, text: str, *, normalize: bool = False) -> Prompt | None:
        """The prompt of the unconditional row: the last text without its directions.

        Both prompts are equal up to the text. Earlier turns keep their directions, because these
        describe the audio that follows them.

        Args:
            prompt: the result of ``build`` for the text.
            text, normalize: of that prompt.

        Returns:
            None if it would be the same prompt: the text has no directions, the checkpoint does not
            read them, or its tokenizer ignores these.

        Raises:
            RequestError: the text without its directions is invalid.
        """
        words = with_speaker_tag(_turn(text, "text", normalize))
        bare = strip_directions(words)
        if bare == words or not self.reads_directions:
            return None
        check_part(bare, "the text without its directions")
        first, end = prompt.text_rows
        middle = self._text_rows(bare)
        rows = np.concatenate([prompt.rows[:first], middle, prompt.rows[end:]])
        if np.array_equal(rows, prompt.rows):
            return None
        return Prompt(rows, prompt.system_rows, (first, first + len(middle)))

    def _user_turn(self, text: str, what: str, normalize: bool) -> list[Rows]:
        said = _turn(text, what, normalize)
        if not self.reads_directions:
            said = check_part(flatten(spoken_words(said)), f"{what} without its directions")
        words = self._text_rows(with_speaker_tag(said))
        return [self._fixed[_USER], words, self._fixed[_END], self._fixed[_VOICE]]

    def _text_rows(self, part: str) -> Rows:
        ids = self.tokenizer.encode(part).ids
        rows = np.zeros((len(ids), 1 + self._config.num_codebooks), dtype=np.int64)
        rows[:, 0] = ids
        return rows

    def _audio_rows(self, codes: npt.ArrayLike, what: str) -> Rows:
        frames = check_codes(codes, self._config, what)
        return np.concatenate([self._config.semantic_start + frames[:1], frames]).T


def _turn(text: str, what: str, normalize: bool = False) -> str:
    check_text(text, what)
    return flatten(check_part(normalized(text), what) if normalize else text)


def check_codes(codes: npt.ArrayLike, config: ModelConfig, what: str = "codes") -> Rows:
    """Validates codes and returns them as an int64 array ``[num_codebooks, frames]``.

    Args:
        codes: anything that numpy can read as integers, including torch tensors in host memory.
        config: config of the checkpoint that will read them.
        what: their name in error messages.

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
            f"checkpoint's codes run from 0 to {last}. Use codes from this checkpoint."
        )
    return found.astype(np.int64)
