"""Recordings of unequal length, as models of transformers take them."""

from __future__ import annotations

import pytest
import torch

import evenstep
from evenstep.errors import CollateError

transformers = pytest.importorskip("transformers")


FRAMES = [{"input_features": torch.ones(n, 4), "labels": [1, 2]} for n in (5, 3, 4)]


def test_features_of_unequal_length_need_a_mask():
    with pytest.raises(CollateError, match="needs padding, and no attention_mask"):
        list(evenstep.DataLoader(FRAMES, policy=evenstep.Even(max_tokens=40)))


@pytest.mark.parametrize("remedy", ["mask", "value"])
def test_both_remedies_make_the_batch(remedy):
    data, collate = FRAMES, evenstep.PadCollator()
    if remedy == "mask":
        data = [{**s, "attention_mask": torch.ones(len(s["input_features"]))} for s in FRAMES]
    else:
        collate = evenstep.PadCollator(pad_values={"input_features": 0})
    ((batch, _),) = evenstep.DataLoader(data, batch_size=3, collate_fn=collate).steps()
    assert [int(row.sum()) // 4 for row in batch["input_features"]] == [5, 3, 4]
    assert ("attention_mask" in batch) == (remedy == "mask")
    if remedy == "mask":
        assert torch.equal(batch["attention_mask"], batch["input_features"][:, :, 0])


def test_bands_of_unequal_frames_are_refused_and_made_equal_are_stacked():
    """Such as Whisper's [bands, frames]: its feature extractor pads all to 30 seconds."""
    data = [{"input_features": torch.ones(4, n), "labels": [1, 2]} for n in (5, 3)]
    with pytest.raises(CollateError, match="make them equal in the dataset"):
        list(evenstep.DataLoader(data, policy=evenstep.Even(max_tokens=40)))
    equal = [
        {**s, "input_features": torch.nn.functional.pad(f, (0, 8 - f.shape[1]))}
        for s in data
        for f in [s["input_features"]]
    ]
    (batch,) = evenstep.DataLoader(equal, policy=evenstep.Even(max_tokens=40))
    assert batch["input_features"].shape == (2, 4, 8)
    assert "attention_mask" not in batch
