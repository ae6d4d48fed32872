"""The official ``codec.pth``: inventory, loading, and random checkpoints of the same layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rt_drama3.codec.codec import Codec
from rt_drama3.codec.layout import Slot, Source, Spelling, codec_slots
from rt_drama3.codec.weights import Device, Dtype
from rt_drama3.config import CodecConfig
from rt_drama3.errors import CheckpointError

_IGNORED = (".causal_mask", ".freqs_cis")  # buffers that can be recomputed
_GENERATOR = "generator."
_SHOWN = 5
_NORMED = (Spelling.PARAMETRIZED, Spelling.OLD, Spelling.FOLDED)


def codec_inventory(
    config: CodecConfig, encoder: bool = True, state: Mapping[str, Tensor] | None = None
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a file with these sizes.

    Args:
        config: sizes of the codec.
        encoder: with its encode half.
        state: tensors whose spelling of weight norm to follow; None is the official file's.
    """
    names: dict[str, tuple[int, ...]] = {}
    for source in _sources(codec_slots(config), encoder):
        names.update(source.stored(None if state is None else _spelling(source, state)))
    return names


def random_codec_state(
    config: CodecConfig, encoder: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """A random checkpoint (float32) in the official layout, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for source in _sources(codec_slots(config), encoder):
        value = torch.randn(source.shape, generator=generator).mul_(source.std).add_(source.mean)
        if source.spelling is Spelling.PLAIN:
            state[source.name] = value
            continue
        gain_name, value_name = source.stored()
        norm = _norm(value)
        # The direction is stored with a length of its own, as after training.
        state[gain_name] = norm * (1 + 0.1 * torch.randn(norm.shape, generator=generator))
        state[value_name] = value * (0.5 + torch.rand(norm.shape, generator=generator))
    return state


def unwrap_codec_state(loaded: object) -> dict[str, Tensor]:
    """The flat tensors of what ``torch.load`` gave for a ``codec.pth``.

    A ``state_dict`` entry is opened; if there are ``generator.`` keys only those are kept, without
    the prefix (training files also hold a discriminator); buffers that can be recomputed go.

    Raises:
        CheckpointError: it is not a dict of tensors.
    """
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not loaded:
        raise CheckpointError(
            f"The codec file holds {_kind(loaded)}, but a dict of tensors is needed "
            "(optionally under 'state_dict'). Download codec.pth again."
        )
    if any(str(key).startswith(_GENERATOR) for key in loaded):
        loaded = {
            str(key).removeprefix(_GENERATOR): value
            for key, value in loaded.items()
            if str(key).startswith(_GENERATOR)
        }
    state: dict[str, Tensor] = {}
    for key, value in loaded.items():
        if str(key).endswith(_IGNORED):
            continue
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"The codec file holds {_kind(value)} under {str(key)!r}, but a flat dict of "
                "tensors is needed (optionally under 'state_dict'). Download codec.pth again."
            )
        state[str(key)] = value
    return state


def has_encode_half(config: CodecConfig, state: Mapping[str, Tensor]) -> bool:
    """Whether any tensor of the encode half is there (then all of them must be)."""
    slots = codec_slots(config)
    either = {name for source in _sources(slots, True) for name in _all_names(source)}
    decode = {name for source in _sources(slots, False) for name in _all_names(source)}
    return not (either - decode).isdisjoint(state)


def load_codec(
    config: CodecConfig,
    loaded: object,
    *,
    device: Device = None,
    dtype: Dtype = None,
) -> Codec:
    """A codec with the weights of a ``codec.pth``, with its encode half if the file has one.

    Args:
        config: sizes of the codec.
        loaded: what ``torch.load`` gave.
        device, dtype: of the codec; weights are combined in float32 and cast once.

    Raises:
        CheckpointError: tensors are missing, unexpected, of the wrong shape, or not finite.
    """
    state = unwrap_codec_state(loaded)
    encoder = has_encode_half(config, state)
    codec = Codec(config, encoder=encoder, device=device, dtype=dtype)
    load_codec_state(codec, state)
    return codec


def load_codec_state(codec: Codec, loaded: object) -> None:
    """Fills a codec from a ``codec.pth``.

    Weight norm is folded (both spellings, anywhere) in float32, then cast to the codec's dtype. A
    codec without encode half ignores that half of the file.

    Raises:
        CheckpointError: tensors are missing, unexpected, of the wrong shape, or not finite.
    """
    state = unwrap_codec_state(loaded)
    slots = codec_slots(codec.config)
    wanted = list(_sources(slots, codec.has_encoder))
    spelled = {source.name: _spelling(source, state) for source in wanted}
    missing = [name for s in wanted for name in s.stored(spelled[s.name]) if name not in state]
    if missing:
        raise CheckpointError(f"The codec file lacks {_listing(missing)}. Download it again.")
    known = {name for source in wanted for name in source.stored(spelled[source.name])}
    if not codec.has_encoder:
        known |= {name for source in _sources(slots, True) for name in _all_names(source)}
    unexpected = [name for name in state if name not in known]
    if unexpected:
        raise CheckpointError(
            f"The codec file holds {_listing(unexpected)} that a codec of this config does not "
            "have. Is codec_config.json missing or of another checkpoint?"
        )
    parameters = dict(codec.named_parameters())
    for slot in slots:
        if slot.target in parameters:
            parts = [_fetch(state, source, spelled[source.name]) for source in slot.sources]
            parameters[slot.target].copy_(slot.build(*parts))


@dataclass(frozen=True)
class FoldedTensor:
    """A tensor of a codec without weight norm, which is made when it is asked for.

    Attributes:
        shape: of the tensor.
        read: makes it, in float32; raises CheckpointError if it is damaged.
    """

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def folded_codec(config: CodecConfig, loaded: object) -> dict[str, FoldedTensor]:
    """The tensors of a ``codec.pth`` with weight norm folded, as other containers have it.

    Raises:
        CheckpointError: tensors are missing.
    """
    state = unwrap_codec_state(loaded)
    folded, missing = {}, list[str]()
    for source in _sources(codec_slots(config), has_encode_half(config, state)):
        plain, spelling = source.spelling is Spelling.PLAIN, _spelling(source, state)
        (name,) = source.stored(Spelling.PLAIN if plain else Spelling.FOLDED)
        missing += [part for part in source.stored(spelling) if part not in state]
        folded[name] = FoldedTensor(source.shape, partial(_fetch, state, source, spelling))
    if missing:
        raise CheckpointError(f"The codec file lacks {_listing(missing)}. Download it again.")
    return folded


def folded_codec_state(config: CodecConfig, loaded: object) -> dict[str, Tensor]:
    """All tensors of ``folded_codec``, in float32.

    Raises:
        CheckpointError: tensors are missing, of the wrong shape, or not finite.
    """
    return {name: tensor.read() for name, tensor in folded_codec(config, loaded).items()}


def _sources(slots: Iterable[Slot], encoder: bool) -> Iterable[Source]:
    """Each source once, in the order of the table."""
    return {
        source.name: source
        for slot in slots
        if encoder or not slot.encode_half
        for source in slot.sources
    }.values()


def _all_names(source: Source) -> list[str]:
    """The names a source may have in a file."""
    if source.spelling is Spelling.PLAIN:
        return [source.name]
    return [name for spelling in _NORMED for name in source.stored(spelling)]


def _spelling(source: Source, state: Mapping[str, Tensor]) -> Spelling:
    """The weight-norm spelling that the file uses for this tensor."""
    if source.spelling is not Spelling.PLAIN:
        for spelling in _NORMED:
            if any(name in state for name in source.stored(spelling)):
                return spelling
    return source.spelling


def _norm(value: Tensor) -> Tensor:
    """Length over all dimensions of a kernel but the first, kept for broadcasting."""
    norm: Tensor = torch.linalg.vector_norm(value, dim=(1, 2), keepdim=True)
    return norm


def _fetch(state: Mapping[str, Tensor], source: Source, spelling: Spelling) -> Tensor:
    """The tensor in float32, weight norm folded: ``g * v / |v|``."""
    parts = []
    for name, shape in source.stored(spelling).items():
        value = state[name]
        if squeezed(value.shape) != squeezed(shape):
            raise CheckpointError(
                f"Codec tensor {name} has shape {list(value.shape)}, but the config asks for "
                f"{list(shape)}. Is codec_config.json missing or of another checkpoint?"
            )
        if not value.is_floating_point():
            raise CheckpointError(
                f"Codec tensor {name} is {value.dtype}, but a floating-point tensor is needed."
            )
        value = value.float().reshape(shape)
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(
                f"Codec tensor {name} holds NaN or infinite values. The file is damaged; "
                "download it again."
            )
        parts.append(value)
    if len(parts) == 1:
        return parts[0]
    gain, direction = parts
    norm = _norm(direction)
    if not bool((norm > 0).all()):
        raise CheckpointError(
            f"Codec tensor {source.name} has a weight-norm direction of length 0, which has no "
            "meaning. The file is damaged; download it again."
        )
    return gain * direction / norm


def squeezed(shape: Iterable[int]) -> list[int]:
    """A shape without the dims of 1, which some containers drop."""
    return [size for size in shape if size != 1]


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        keys = ", ".join(repr(str(key)) for key in list(value)[:_SHOWN])
        return f"a dict with keys {keys}" if keys else "an empty dict"
    return f"a {type(value).__name__}"


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} tensors ({shown}{more})" if len(names) > 1 else f"tensor {shown}"
