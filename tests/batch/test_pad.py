from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import PadCollator
from evenstep.errors import CollateError


def sample(length: int, seed: int = 0) -> dict[str, Any]:
    """One of every kind of field; labels are no copy of the tokens."""
    rng = np.random.default_rng([length, seed])
    return {
        "input_ids": torch.from_numpy(rng.integers(1, 99, length)),
        "labels": torch.from_numpy(rng.integers(100, 199, length)),
        "features": torch.from_numpy(rng.normal(size=(length, 3))),
        "token_type_ids": rng.integers(1, 3, length).astype(np.int32),
        "weights": rng.normal(size=length).tolist(),
        "image": torch.from_numpy(rng.normal(size=(13, 2, 3))),
        "score": float(rng.normal()),
        "name": f"sample {length}",
    }


SEQUENCES = {"input_ids": 7, "labels": -100, "features": 0, "token_type_ids": 0, "weights": 0}
lengths = st.lists(st.integers(1, 12), min_size=1, max_size=5)


@given(lengths, st.sampled_from(["right", "left"]), st.sampled_from([None, 1, 4, 8]))
def test_cutting_the_padding_off_gives_the_samples_back(sizes, side, multiple):
    samples = [sample(length, seed) for seed, length in enumerate(sizes)]
    batch = PadCollator(side=side, pad_token_id=7, pad_to_multiple_of=multiple)(samples)
    width = -(-max(sizes) // (multiple or 1)) * (multiple or 1)
    for name, value in SEQUENCES.items():
        assert batch[name].shape[:2] == (len(sizes), width)
        for i, length in enumerate(sizes):
            row = batch[name][i]
            real, padding = row[:length], row[length:]
            if side == "left":
                real, padding = row[width - length :], row[: width - length]
            torch.testing.assert_close(
                real, torch.as_tensor(samples[i][name], dtype=real.dtype), rtol=0, atol=0
            )
            assert (padding == value).all()
            mask = batch["attention_mask"][i]
            assert mask.sum() == length
            assert (mask[:length] if side == "right" else mask[width - length :]).all()
    assert torch.equal(batch["image"], torch.stack([s["image"] for s in samples]))
    assert batch["score"].tolist() == pytest.approx([s["score"] for s in samples])
    assert batch["name"] == [s["name"] for s in samples]


def test_dtypes_are_kept_and_python_numbers_become_torchs_defaults():
    batch = PadCollator()(
        [
            {
                "input_ids": [1] * n,
                "f": np.ones(n, np.float16),
                "b": torch.ones(n, dtype=torch.bfloat16),
                "flag": [True] * n,
                "weight": [0.5] * n,
                "one": 1,
                "yes": True,
                "small": np.int16(3),
                "ids": np.ones(n, np.uint16),
            }
            for n in (2, 3)
        ]
    )
    assert {name: value.dtype for name, value in batch.items()} == {
        "input_ids": torch.int64,
        "f": torch.float16,
        "b": torch.bfloat16,
        "flag": torch.bool,
        "weight": torch.float32,
        "one": torch.int64,
        "yes": torch.bool,
        "small": torch.int16,
        "ids": torch.int64,  # embeddings take no unsigned integers
        "attention_mask": torch.int64,
    }


def test_a_mask_says_which_samples_of_waveforms_are_real():
    waves = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])]
    batch = PadCollator()([{"input_values": wave, "labels": [1, 2]} for wave in waves])
    assert batch["input_values"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("remedy", [None, "mask", "value"])
def test_features_of_unequal_length_need_a_mask_or_a_value(remedy):
    data = [{"input_features": torch.ones(n, 4), "labels": [1, 2]} for n in (5, 3, 4)]
    collate = PadCollator(pad_values={"input_features": 0} if remedy == "value" else {})
    if remedy == "mask":
        data = [{**s, "attention_mask": torch.ones(len(s["input_features"]))} for s in data]
    if remedy is None:
        with pytest.raises(CollateError, match="needs padding, and no attention_mask"):
            collate(data)
        return
    batch = collate(data)
    assert [int(row.sum()) // 4 for row in batch["input_features"]] == [5, 3, 4]
    assert ("attention_mask" in batch) == (remedy == "mask")
    if remedy == "mask":
        assert torch.equal(batch["attention_mask"], batch["input_features"][:, :, 0])


def test_padding_follows_field_names_and_then_pad_values():
    samples = [{"input_ids": [1] * n, "labels": [2] * n, "position_ids": [3] * n} for n in (1, 2)]
    batch = PadCollator(pad_values={"position_ids": 9})(samples)
    assert batch["labels"].tolist() == [[2, -100], [2, 2]]
    assert batch["position_ids"].tolist() == [[3, 9], [3, 3]]
    batch = PadCollator(pad_token_id=5, pad_values={"input_ids": 6})(samples)
    assert batch["input_ids"].tolist() == [[1, 6], [1, 1]]


def test_multiples_round_up_labels_and_fields_as_long_as_the_tokens_only():
    samples = [
        {"input_ids": [1, 1, 1], "labels": [1, 2], "boxes": torch.ones(2, 4), "size": [8, 9]},
        {"input_ids": [1], "labels": [1, 2, 3, 4, 5], "boxes": torch.ones(1, 4), "size": [8, 9]},
    ]
    batch = PadCollator(pad_to_multiple_of=4, pad_values={"boxes": 0})(samples)
    shapes = {name: tuple(value.shape) for name, value in batch.items()}
    assert shapes == {
        "input_ids": (2, 4),
        "labels": (2, 8),  # an encoder-decoder's: of their own length
        "boxes": (2, 2, 4),
        "size": (2, 2),
        "attention_mask": (2, 4),
    }


def test_what_is_no_number_is_listed_and_what_is_never_there_stays_none():
    samples = [
        {"input_ids": [1], "text": "a", "tags": [], "meta": {"k": 1}, "ragged": [[1], [2, 3]]},
        {"input_ids": [2], "text": "b", "tags": ["x"], "meta": {"k": 2}, "ragged": [[4]]},
    ]
    samples = [{**s, "image": None} for s in samples]
    batch = PadCollator()(samples[:1] * 2)
    assert batch["ragged"] == [[[1], [2, 3]]] * 2
    for s in samples:
        del s["ragged"]
    batch = PadCollator()(samples)
    assert batch["text"] == ["a", "b"]
    assert batch["tags"] == [[], ["x"]]
    assert batch["meta"] == [{"k": 1}, {"k": 2}]
    assert batch["image"] is None


def vision(length: int, grids: list[list[int]]) -> dict[str, Any]:
    patches = sum(t * h * w for t, h, w in grids)
    return {
        "input_ids": [1] * length,
        "pixel_values": torch.arange(patches * 2.0).reshape(patches, 2) + 100 * length,
        "image_grid_thw": torch.tensor(grids),
    }


def test_patches_with_a_grid_are_joined_in_order_and_images_may_be_missing():
    samples = [
        vision(3, [[1, 2, 2]]),
        {"input_ids": [4, 5]},
        vision(1, [[1, 1, 2], [1, 3, 1]]),
        {"input_ids": [4], "pixel_values": None, "image_grid_thw": None},
    ]
    batch = PadCollator()(samples)
    assert batch["image_grid_thw"].tolist() == [[1, 2, 2], [1, 1, 2], [1, 3, 1]]
    expected = torch.cat([samples[0]["pixel_values"], samples[2]["pixel_values"]])
    assert torch.equal(batch["pixel_values"], expected)
    assert batch["input_ids"].shape == (4, 3)
    assert PadCollator()(samples[3:] * 2)["pixel_values"] is None


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], ["without samples"]),
        ([{"input_ids": [1]}, {"input_ids": [1], "a": 2}], ["'a'", "sample 0", "collate_fn="]),
        ([{"a": 1, "b": 2}, {"a": 1}], ["'b'", "missing in sample 1", "collate_fn="]),
        ([{"input_ids": [1]}, {"input_ids": []}], ["sample 1", "no tokens", "filter"]),
        ([[1, 2], []], ["sample 1", "no tokens"]),
        (
            [{"x": torch.ones(2, 3)}, {"x": torch.ones(2, 4)}],
            ["'x'", "(2, 3), (2, 4)", "collate_fn="],
        ),
        ([{"x": torch.ones(2, 3)}, {"x": torch.ones(4)}], ["'x'", "(2, 3), (4,)"]),
        ([{"x": 1}, {"x": [1, 2]}], ["'x'", "(), (2,)"]),
        ([{"x": [1]}, {"x": "a"}], ["'x'", "sample 0", "str in sample 1"]),
        ([{"x": None}, {"x": 1}], ["'x'", "NoneType in sample 0"]),
        ([{"input_ids": [1]}, [1]], ["sample 0", "dict", "sample 1", "list"]),
        ([(1, 2), (1, 2)], ["tuple", "collate_fn="]),
        (["a", "b"], ["str", "collate_fn="]),
        ([3, 4], ["int", "collate_fn="]),
        (
            [{"input_ids": [1], "labels": np.ones(n, np.uint8)} for n in (1, 2)],
            ["'labels'", "uint8", "-100", "pad_values="],
        ),
        (
            [vision(2, [[1, 1, 1]]), {"input_ids": [1], "pixel_values": torch.ones(3, 2, 2)}],
            ["'pixel_values'"],
        ),
        (
            [vision(2, [[1, 1, 1]]), {"input_ids": [1], "pixel_values": torch.ones(3, 9)}],
            ["'pixel_values'", "(1, 2), (3, 9)"],
        ),
    ],
)
def test_groups_that_cannot_be_padded_name_field_sample_and_remedy(samples, words):
    with pytest.raises(CollateError) as caught:
        PadCollator()(samples)
    for word in words:
        assert word in str(caught.value)
