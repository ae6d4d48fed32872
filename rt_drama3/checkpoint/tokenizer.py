"""The checkpoint's tokenizer, checked against its config.

A tokenizer of another checkpoint would turn every prompt into other tokens without any error, so
every special token is checked here (docs/model.md, 6 and 10).
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Tokenizer

from rt_drama3.checkpoint.files import TOKENIZER, Place, files_of
from rt_drama3.checkpoint.word_rules import read_tokenizer
from rt_drama3.config import ModelConfig
from rt_drama3.errors import CheckpointError
from rt_drama3.text.rules import SPEAKERS

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
STRUCTURAL = (IM_START, IM_END, "<|voice|>", "<|text|>", "<|interleave|>")
SPEAKER_TOKENS = tuple(f"<|speaker:{i}|>" for i in range(SPEAKERS))


def semantic_token(code: int) -> str:
    """Returns the token of a code of the first codebook."""
    return f"<|semantic:{code}|>"


def load_tokenizer(place: Place, config: ModelConfig) -> Tokenizer:
    """Loads ``tokenizer.json``; its padding and truncation settings are turned off.

    Raises:
        CheckpointError: the file is missing or damaged, or a token is missing, has another id than
            the config says, or is not one token.
    """
    files = files_of(place)
    path, data = files.where(TOKENIZER), files.json(TOKENIZER)  # its errors name the damaged place
    try:
        tokenizer = read_tokenizer(files.read(TOKENIZER), data)
    except Exception as error:  # tokenizers raises nothing more specific
        raise CheckpointError(
            f"{path} is not a tokenizer that this version can read ({error}). Download it again."
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for problem in tokenizer_problems(tokenizer, config):
        raise CheckpointError(
            f"{path} does not fit config.json: {problem}. Both must come from the same checkpoint."
        )
    return tokenizer


def tokenizer_problems(tokenizer: Tokenizer, config: ModelConfig) -> Iterator[str]:
    """Yields what is wrong with a tokenizer, one phrase each."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    expected: dict[str, int | None] = dict.fromkeys((*STRUCTURAL, *SPEAKER_TOKENS))
    expected[IM_END] = config.eos
    for code in range(config.tower.codebook_size):
        expected[semantic_token(code)] = config.semantic_start + code
    for token, wanted in expected.items():
        found = vocabulary.get(token)
        if found is None:
            yield f"{token} is missing"
        elif wanted is not None and found != wanted:
            yield f"{token} is {found} instead of {wanted}"
        elif (ids := tokenizer.encode(token).ids) != [found]:
            yield f"{token} is encoded as {ids} instead of the single token {found}"
    token, highest = max(vocabulary.items(), key=lambda item: item[1])
    if highest >= config.backbone.vocab_size:
        yield f"{token} is {highest}, but vocab_size is {config.backbone.vocab_size}"
