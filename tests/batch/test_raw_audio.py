"""Recordings of unequal length, as models of transformers take them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import evenstep
from evenstep.errors import CollateError

transformers = pytest.importorskip("transformers")

COUNT = 16


def recording(index: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(index)
    return {
        "input_values": torch.randn(800 + 200 * (7 * index % 11), generator=made),
        "labels": torch.randint(1, 30, (2 + index % 4,), generator=made),
    }


RECORDINGS = [recording(i) for i in range(COUNT)]


class Stream(IterableDataset[Any]):
    def __iter__(self):
        return iter(RECORDINGS)


def padded(sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As a feature extractor makes it with ``padding="max_length"``."""
    wave = sample["input_values"]
    mask = (torch.arange(3000) < len(wave)).long()
    wave = torch.nn.functional.pad(wave, (0, 3000 - len(wave)))
    return {"input_values": wave, "attention_mask": mask, "labels": sample["labels"]}


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
    config = transformers.Wav2Vec2Config(
        **sizes,
        **convolutions,
        intermediate_size=16,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer",  # the other kind has a mean over all of a row, padding included
        do_stable_layer_norm=True,
        ctc_loss_reduction="sum",
    )
    return transformers.Wav2Vec2ForCTC(config).eval().double()


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> float:
    kept = {name: batch[name] for name in ("attention_mask", "labels") if name in batch}
    with torch.no_grad():
        return model(batch["input_values"].double(), **kept).loss.item()


def samples_of(sample: Any) -> int:
    return len(sample["input_values"])


LOADERS: dict[str, dict[str, Any]] = {
    "length-fn": {"policy": evenstep.Even(max_tokens=9000), "length_fn": samples_of},
    "fixed": {"batch_size": 4},
    "pad-collator": {"batch_size": 4, "collate_fn": evenstep.PadCollator()},
    "left": {"batch_size": 4, "collate_fn": evenstep.PadCollator(side="left")},
    "multiple": {
        "policy": evenstep.Even(max_tokens=9000),
        "length_fn": samples_of,
        "collate_fn": evenstep.PadCollator(pad_to_multiple_of=64),
    },
}


@pytest.mark.parametrize("name", list(LOADERS))
@pytest.mark.parametrize("data", ["map", "stream", "padded"])
def test_the_loss_of_a_batch_is_that_of_its_recordings_one_by_one(model, name, data):
    alone = sum(
        loss_of(model, {key: value[None] for key, value in each.items()}) for each in RECORDINGS
    )
    datasets = {"map": RECORDINGS, "stream": Stream(), "padded": [padded(s) for s in RECORDINGS]}
    loader = evenstep.DataLoader(datasets[data], **LOADERS[name])
    together, tokens = 0.0, 0
    for batch, step in loader.steps():
        together += loss_of(model, batch)
        tokens += step.tokens
        if "length_fn" in LOADERS[name]:
            assert step.padded_tokens == batch["input_values"].numel()
    assert together == pytest.approx(alone, rel=1e-5)
    if "length_fn" in LOADERS[name]:
        assert tokens == sum(map(samples_of, RECORDINGS))


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
