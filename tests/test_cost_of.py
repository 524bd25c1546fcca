"""The cost of models, from their configurations."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import evenstep
from evenstep.cost import (
    UNKNOWN_MODEL,
    PaddedTokenCost,
    VisionLanguageCost,
    cost_of,
)
from evenstep.cost.of_model import ATTENTION_RATE
from evenstep.plan.policies.even.timed import counts


def config(**fields: Any) -> Any:
    return SimpleNamespace(**{"rms_norm_eps": 1e-6, **fields})


NAMES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
QWEN = config(**dict(zip(NAMES, (24, 896, 14, 2, 4864, 151_936))))
LLAMA = config(**dict(zip(NAMES, (32, 4096, 32, 8, 14_336, 128_256))))
EXPERTS = {"vocab_size": 32_000, "num_local_experts": 8, "num_experts_per_tok": 2}
MODELS = {
    # Tokens at which attention takes as long as all else: the first was measured on an H100.
    "Qwen2.5 0.5B": (14_000, QWEN),
    "Llama 3 8B": (34_000, LLAMA),
    "Mixtral": (58_000, config(**vars(LLAMA) | EXPERTS)),
}


@pytest.mark.parametrize(("tokens", "model"), MODELS.values(), ids=MODELS)
def test_attention_equals_the_rest_at(tokens: int, model: Any) -> None:
    cost = cost_of(model)
    assert cost.per_token / cost.per_pair == pytest.approx(tokens, rel=0.02)
    assert cost_of(SimpleNamespace(config=SimpleNamespace(text_config=model))) == cost


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("DeepseekV3Config", 36.6e9),
        ("Qwen3MoeConfig", 1.45e9),
        ("GPT2Config", 0.1235e9),
        ("GptOssConfig", 5.1e9),
    ],
)
def test_a_token_meets_the_parameters_of(kind: str, parameters: float) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    cost = cost_of(getattr(transformers, kind)())
    assert cost.per_token / 6 == pytest.approx(parameters, rel=0.03)


TOWERS = {
    # Patches that are counted as one, and what of the time is that of windows, if any.
    "Qwen2VLConfig": (1, False),
    "Qwen2_5_VLConfig": (1, True),
    "Qwen3VLConfig": (1, False),
    "LlavaConfig": (24 * 24, False),
    "LlavaOnevisionConfig": (27 * 27, False),
    "Gemma3Config": (14 * 14, False),
    "InternVLConfig": (32 * 32, False),
    "Idefics3Config": (7 * 7, False),
    "SmolVLMConfig": (7 * 7, False),
}


@pytest.mark.parametrize("kind", TOWERS)
def test_a_tower_costs_its_parameters_and_pairs_for_each_patch(kind: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    together, windows = TOWERS[kind]
    made = getattr(transformers, kind)()
    cost = cost_of(made, vision=True)
    assert isinstance(cost, VisionLanguageCost)
    assert cost.language == cost_of(made)
    tower = made.vision_config
    layers, hidden = tower.num_hidden_layers, getattr(tower, "embed_dim", tower.hidden_size)
    pair = 3 * 4 * hidden / ATTENTION_RATE
    whole = len(tower.fullatt_block_indexes) if windows else layers
    token = 6 * _parameters_of_layers(tower) + (layers - whole) * pair * 64
    # What an image costs of three that count as one, or of one patch.
    expected = together * token + layers * pair * together**2
    if together == 1:
        assert cost.vision.per_token == pytest.approx(token)
        assert cost.vision.per_pair == pytest.approx(whole * pair)
    else:
        assert cost.of_patches(3, 3) == pytest.approx(3 * expected)


def _parameters_of_layers(tower: Any) -> int:
    """Of all matrices in the layers of a vision tower, as transformers builds it."""
    import torch
    from transformers import AutoModel
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    with torch.device("meta"):
        if tower.model_type == "qwen2_vl_vision":
            model = Qwen2VisionTransformerPretrainedModel._from_config(tower)
        else:
            model = AutoModel.from_config(tower)
    inside = ("layers.", "layer.", "blocks.")
    return sum(
        weights.numel()
        for name, weights in model.named_parameters()
        if weights.ndim == 2 and any(part in name for part in inside)
    )


def test_images_count_only_where_asked_and_where_the_tower_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16}
    images = {"model_type": "siglip_vision_model", "image_size": 20, "patch_size": 10}
    tower = SimpleNamespace(**sizes, **images)
    both = SimpleNamespace(model_type="pictures", text_config=LLAMA, vision_config=tower)
    assert cost_of(both) == cost_of(LLAMA) == cost_of(LLAMA, vision=True)
    found = cost_of(both, vision=True)
    assert isinstance(found, VisionLanguageCost)
    # 2 layers of 4 x 8 x 8 + 2 x 8 x 16 = 512 parameters, and 2 x 2 patches of an image.
    image = 4 * 6 * 1024 + 16 * 2 * 3 * 4 * 8 / ATTENTION_RATE
    assert found.of_patches(5, 5) == pytest.approx(5 * image)
    tower.model_type = "pixtral"
    with caplog.at_level(logging.INFO, "evenstep"):
        assert cost_of(both, vision=True) == cost_of(LLAMA)
    line = caplog.messages[0]
    for part in ("the cost of pictures", "34,354 tokens", "its vision tower is left out"):
        assert part in line


def test_layers_with_a_window_cost_no_pairs() -> None:
    kinds = ["sliding_attention"] * 24 + ["full_attention"] * 8
    windows = config(**vars(LLAMA) | {"sliding_window": 1024, "layer_types": kinds})
    assert cost_of(windows).per_pair == pytest.approx(cost_of(LLAMA).per_pair / 4)
    assert 1.03 < cost_of(windows).per_token / cost_of(LLAMA).per_token < 1.06


def test_an_unknown_model_has_the_usual_cost_and_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "evenstep"):
        assert cost_of(SimpleNamespace(model_type="mamba")) == UNKNOWN_MODEL
    assert "the cost of mamba is not known" in caplog.text
    assert evenstep.Even(1024).cost == UNKNOWN_MODEL


def test_a_sample_counts_as_much_as_short_ones_that_take_as_long() -> None:
    lengths = np.array([1, 120, 1200, 12_000, 24_000])
    expected = [1, 120, 1260, 18_000, 48_000]
    for packed in (False, True):
        assert counts(UNKNOWN_MODEL, lengths, packed=packed).tolist() == expected
    only_tokens = PaddedTokenCost()
    assert (counts(only_tokens, lengths, packed=False) == lengths).all()
