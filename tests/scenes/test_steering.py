"""Steering vectors: measuring, files, checks, and their effect on the rows of the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import rt_drama3
from rt_drama3.drama3 import Drama3
from rt_drama3.errors import RequestError
from rt_drama3.model import StreamState
from rt_drama3.scenes.steering import (
    Steering,
    SteeringStore,
    SteeringVectors,
    directed,
    fingerprint,
    measure,
)
from rt_drama3.text.directions import strip_directions
from rt_drama3.text.prompt import PromptBuilder
from tests.small import SAMPLED, Slots, shared_drama, small_directory

TEXTS = ["Leave the house now.", "It was late, and the lights were off.", "Good morning to you."]
LAYERS = 2  # of the small checkpoint


@pytest.fixture
def store(tmp_path: Path) -> SteeringStore:
    return SteeringStore(shared_drama().model, tmp_path)


def vector(store: SteeringStore, name: str = "glad", layer: int = 0, seed: int = 0) -> Steering:
    size = shared_drama().config.backbone.hidden_size
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return Steering(name, layer, numbers, store.fingerprint, "[glad]", 3)


def outputs(
    drama: Drama3,
    rows: Tensor,
    vectors: SteeringVectors | None = None,
    text_rows: tuple[int, int] = (0, 0),
) -> list[Tensor]:
    """The output of every layer for a prompt, ``[T, dim]`` each."""
    seen: dict[int, list[Tensor]] = {}
    moves = vectors.hook(text_rows) if vectors else None

    def hook(layer: int, start: int, x: Tensor) -> Tensor:
        if moves is not None:
            x = moves(layer, start, x)
        seen.setdefault(layer, []).append(x.clone())
        return x

    state = StreamState.allocate(drama.config, 1, len(rows))
    with torch.inference_mode():
        drama.model.prefill(rows, state, 0, chunk=16, hook=hook)
    return [torch.cat(seen[layer]) for layer in range(LAYERS)]


# The model.


def test_the_fingerprint_of_a_model_does_not_depend_on_the_dtype() -> None:
    prints = {
        (seed, dtype): fingerprint(
            rt_drama3.load(small_directory(seed), device="cpu", dtype=dtype).model
        )
        for seed in (0, 1)
        for dtype in ("float32", "bfloat16", "float16")
    }
    for seed in (0, 1):
        assert len({prints[seed, dtype] for dtype in ("float32", "bfloat16", "float16")}) == 1
    assert prints[0, "float32"] != prints[1, "float32"]


def test_a_changed_matrix_changes_the_fingerprint() -> None:
    drama = rt_drama3.load(small_directory(), device="cpu", dtype="float32")
    before = fingerprint(drama.model)
    with torch.no_grad():
        drama.model.backbone.layers[1].moe.router += 0.5
    assert fingerprint(drama.model) != before


# Measuring.


@pytest.mark.parametrize("direct", ["[excited]", "<whisper>", "[very [very] sad]"])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_vector_is_the_mean_difference_on_the_shared_tokens(direct: str, layer: int) -> None:
    drama = shared_drama()
    builder = drama.prompts
    tag = "<|speaker:0|> "
    shift = len(direct) + (
        0 if direct == "<whisper>" else 1
    )  # of the text, relative to the plain one
    differences = []
    for text in TEXTS:
        tagged = directed(text, direct)
        assert strip_directions(tagged) == text
        hidden, first, offsets, ids = [], [], [], []
        for variant in (tagged, text):
            prompt, tokens = builder.build(variant), builder.tokenizer.encode(tag + variant)
            hidden.append(outputs(drama, torch.from_numpy(prompt.rows))[layer].double())
            first.append(prompt.text_rows[0])
            offsets.append(tokens.offsets)
            ids.append(tokens.ids)
        for i, (start, end) in enumerate(offsets[0]):
            if start < len(tag) + len(direct):
                continue
            there = (start - shift, end - shift)
            if there in offsets[1] and ids[0][i] == ids[1][offsets[1].index(there)]:
                j = offsets[1].index(there)
                differences.append(hidden[0][first[0] + i] - hidden[1][first[1] + j])
    expected = torch.stack(differences).mean(0).float()
    assert len(differences) > 2 * len(TEXTS)
    found = measure(drama.model, builder, direct, TEXTS, layer)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_prompt_of_several_prefill_chunks_is_measured() -> None:
    drama = shared_drama()
    long = "and so on, " * 60
    found = measure(drama.model, drama.prompts, "[calm]", [long + "well."], 1)
    assert torch.isfinite(found).all()
    assert found.abs().sum() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer": LAYERS}, f"this model has layers 0 to {LAYERS - 1}"),
        ({"layer": -1}, "layer is -1"),
        ({"texts": []}, "0 texts were given"),
        ({"texts": ["a [b] c"]}, "text 1 already has directions"),
        ({"texts": ["fine here", ""]}, "text 2 is empty"),
        ({"direct": "excited"}, "not a direction; write it as"),
        ({"direct": ""}, "not a direction"),
        ({"direct": "[a] b"}, "not a direction"),
        ({"direct": "</whisper>"}, "not a direction"),
        ({"direct": "[open"}, "not a direction"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict[str, Any], message: str) -> None:
    drama = shared_drama()
    whole = {"direct": "[excited]", "texts": TEXTS, "layer": 0, **change}
    with pytest.raises(RequestError, match=message.replace("[", r"\[")):
        measure(drama.model, drama.prompts, **whole)


def test_a_model_without_directions_cannot_be_measured(nano: Drama3) -> None:
    builder = PromptBuilder(nano.prompts.tokenizer, nano.config, reads_directions=False)
    with pytest.raises(RequestError, match="not trained on directions"):
        measure(nano.model, builder, "[glad]", TEXTS, 0)


def test_the_hint_is_not_to_measure_where_that_is_impossible(tmp_path: Path) -> None:
    drama = shared_drama()
    store = SteeringStore(drama.model, tmp_path, measurable=False)
    other = SteeringStore(shared_drama(1).model, tmp_path)
    for source in ("glad", vector(other)):
        with pytest.raises(RequestError, match=r"none can be measured.*omit steering") as refusal:
            store.combine([(source, 1.0)])
        assert "voice steer" not in str(refusal.value)
    assert drama.steering._measurable


# Files.


def test_a_vector_survives_saving_and_loading(store: SteeringStore) -> None:
    made = store.measure(shared_drama().prompts, "glad-1", "[glad]", TEXTS, 1)
    made.save(store.path("glad-1"))
    found = store.find("glad-1")
    assert (found.name, found.layer, found.direct, found.texts) == ("glad-1", 1, "[glad]", 3)
    assert torch.equal(found.vector, made.vector)
    assert found.fingerprint == store.fingerprint
    assert store.path("glad-1").stat().st_size < 4096


def test_a_vector_of_another_model_is_refused(store: SteeringStore, tmp_path: Path) -> None:
    other = SteeringStore(shared_drama(1).model, tmp_path)
    vector(other).save(other.path("glad"))
    assert other.find("glad")
    for source in ("glad", store.path("glad"), vector(other)):
        with pytest.raises(RequestError, match=r"measured on another model .*measure it again"):
            store.combine([(source, 1.0)])
        with pytest.raises(RequestError, match="measured on another model"):
            store.combine([(source, 0)])


def damaged(path: Path, **changes: Any) -> None:
    facts = {
        "format": "rt_drama3_steering_v1",
        "name": "glad",
        "layer": "0",
        "fingerprint": "x",
        "direct": "",
        "texts": "1",
        **changes.get("facts", {}),
    }
    tensors = changes.get("tensors", {"vector": torch.zeros(4)})
    save_file(tensors, path, {k: v for k, v in facts.items() if v is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"facts": {"format": "x"}}, "not a steering vector"),
        ({"facts": {"format": None}}, "not a steering vector"),
        ({"tensors": {"other": torch.zeros(4)}}, "not a steering vector"),
        ({"tensors": {"vector": torch.zeros(4), "more": torch.zeros(1)}}, "not a steering vector"),
        ({"facts": {"layer": "one"}}, "damaged"),
        ({"facts": {"layer": None}}, "damaged"),
        ({"facts": {"fingerprint": None}}, "damaged"),
        ({"tensors": {"vector": torch.zeros(2, 2)}}, "damaged"),
        ({"tensors": {"vector": torch.zeros(4, dtype=torch.float16)}}, "damaged"),
        ({"tensors": {"vector": torch.tensor([0.0, float("nan")])}}, "damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "glad.safetensors"
    damaged(path, **changes)
    with pytest.raises(RequestError, match=rf"glad\.safetensors .*{message}"):
        Steering.load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, data in (("empty", b""), ("text", b"hello" * 100), ("zeros", b"\0" * 64)):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(data)
        with pytest.raises(RequestError, match="damaged"):
            Steering.load(path)
    huge = tmp_path / "huge.safetensors"
    with huge.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(RequestError, match="over 1 MiB"):
        Steering.load(huge)
    with pytest.raises(RequestError, match="cannot read"):
        Steering.load(tmp_path / "none.safetensors")


def test_wrong_sizes_are_refused_even_with_the_right_fingerprint(store: SteeringStore) -> None:
    for layer, size in ((LAYERS, 64), (-1, 64), (0, 63)):
        made = Steering("glad", layer, torch.zeros(size), store.fingerprint)
        with pytest.raises(RequestError, match="this model has 2 layers of 64"):
            store.find(made)


@pytest.mark.parametrize("name", ["", "../glad", "a/b", "a.b", "-a", "x" * 65, "é", "a\n", "a b"])
def test_names_are_not_paths(store: SteeringStore, name: str) -> None:
    for use in (store.path, store.find):
        with pytest.raises(RequestError, match="invalid steering name"):
            use(name)


def test_the_error_for_an_unknown_name_has_the_command_that_makes_it(store: SteeringStore) -> None:
    for strength in (1.0, 0.0):
        with pytest.raises(RequestError, match="no steering vector 'glad'; make it with"):
            store.combine([("glad", strength)])


@pytest.mark.parametrize(
    "entries",
    [
        "glad",
        7,
        [("glad",)],
        ["glad"],
        [("glad", "1")],
        [("glad", True)],
        [("glad", None)],
        [("glad", float("nan"))],
        [("glad", float("inf"))],
        [("glad", 101)],
        [("glad", 1.0)] * 17,
        [(3, 1.0)],
    ],
)
def test_invalid_pairs_are_refused(store: SteeringStore, entries: Any) -> None:
    with pytest.raises(RequestError, match="steering"):
        store.combine(entries)


# Adding.


def test_no_vectors_and_strength_0_are_off(store: SteeringStore) -> None:
    assert store.combine([]) is None
    assert store.combine([(vector(store), 0), (vector(store, layer=1), 0.0)]) is None


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("strength", [1.0, -2.5, 0.01])
def test_the_rows_of_the_text_change_by_exactly_the_vector(
    store: SteeringStore, layer: int, strength: float
) -> None:
    drama = shared_drama()
    codes = np.zeros((drama.config.num_codebooks, 9), dtype=np.int64)
    prompt = drama.prompts.build("Leave the house.", [("Ho.", codes)], [("Before.", codes)])
    rows, (first, last) = torch.from_numpy(prompt.rows), prompt.text_rows
    assert first > 32  # after the first prefill chunks
    made = vector(store, layer=layer)
    vectors = store.combine([(made, strength)])
    assert vectors is not None
    plain, moved = outputs(drama, rows), outputs(drama, rows, vectors, prompt.text_rows)
    step = (strength * made.vector.double()).float()
    assert torch.equal(moved[layer][first:last], plain[layer][first:last] + step)
    # The layer's other rows and the layers below do not change.
    assert torch.equal(moved[layer][:first], plain[layer][:first])
    assert torch.equal(moved[layer][last:], plain[layer][last:])
    for below in range(layer):
        assert torch.equal(moved[below], plain[below])
    for above in range(layer + 1, LAYERS):
        assert not torch.equal(moved[above][first:], plain[above][first:])
        assert torch.equal(moved[above][:first], plain[above][:first])


def test_vectors_add_up(store: SteeringStore) -> None:
    one, two, other = (vector(store, layer=n // 2, seed=n) for n in range(3))
    vectors = store.combine([(one, 2.0), (two, -0.5), (other, 1)])
    assert vectors is not None
    assert set(vectors.vectors) == {0, 1}
    both = 2 * one.vector.double() - 0.5 * two.vector.double()
    assert torch.equal(vectors.vectors[0], both.float())
    assert torch.equal(vectors.vectors[1], other.vector)


def test_steering_changes_the_codes(store: SteeringStore) -> None:
    drama = shared_drama()
    prompt = drama.prompts.build("Leave the house.")
    rows = torch.from_numpy(prompt.rows)
    takes = []
    for strength in (0.0, 0.0, 4.0):
        vectors = store.combine([(vector(store), strength)])
        slots = Slots(drama.model, 1)
        slots.step.state.reset(0)
        hook = vectors.hook(prompt.text_rows) if vectors else None
        with torch.inference_mode():
            drama.model.prefill(rows, slots.step.state, 0, hook=hook)
        slots.rows[0] = len(rows)
        slots.step.configure(0, SAMPLED, 3)
        takes.append(slots.frames(0, 12))
    assert takes[0] == takes[1] != takes[2]


def test_a_direction_without_effect_cannot_be_measured(nano: Drama3) -> None:
    with pytest.raises(RequestError, match=r"\[excited\] makes no difference"):
        measure(nano.model, nano.prompts, "[excited]", TEXTS, 1)
