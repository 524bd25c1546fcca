"""The cost of models, from their configurations."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import evenstep
from evenstep.cost import UNKNOWN_MODEL, cost_of
from evenstep.cost.of_model import ATTENTION_RATE
from evenstep.plan.policies.even.timed import counts


def config(**fields: Any) -> Any:
    return SimpleNamespace(**{"rms_norm_eps": 1e-6, **fields})


MODELS = {
    # Tokens at which attention takes as long as all else: two of these were measured on an H100.
    "Qwen2.5 0.5B": (
        14_000,
        config(
            num_hidden_layers=24,
            hidden_size=896,
            num_attention_heads=14,
            num_key_value_heads=2,
            intermediate_size=4864,
            vocab_size=151_936,
        ),
    ),
    "Qwen2.5 7B": (
        42_000,
        config(
            num_hidden_layers=28,
            hidden_size=3584,
            num_attention_heads=28,
            num_key_value_heads=4,
            intermediate_size=18_944,
            vocab_size=152_064,
        ),
    ),
    "Llama 3 8B": (
        34_000,
        config(
            num_hidden_layers=32,
            hidden_size=4096,
            num_attention_heads=32,
            num_key_value_heads=8,
            intermediate_size=14_336,
            vocab_size=128_256,
        ),
    ),
}
LLAMA = MODELS["Llama 3 8B"][1]
EXPERTS = {"vocab_size": 32_000, "num_local_experts": 8, "num_experts_per_tok": 2}
MODELS["Mixtral"] = 58_000, config(**vars(LLAMA) | EXPERTS)


@pytest.mark.parametrize(("tokens", "model"), MODELS.values(), ids=MODELS)
def test_attention_equals_the_rest_at(tokens: int, model: Any) -> None:
    cost = cost_of(model)
    assert cost.per_token / cost.per_pair == pytest.approx(tokens, rel=0.02)
    assert cost_of(SimpleNamespace(config=SimpleNamespace(text_config=model))) == cost


@pytest.mark.parametrize(
    ("kind", "options", "parameters"),
    [
        ("DeepseekV3Config", {}, 36.6e9),
        ("Qwen3MoeConfig", {}, 1.45e9),
        ("GPT2Config", {}, 0.1235e9),
        ("GptOssConfig", {}, 5.1e9),
    ],
)
def test_a_token_meets_the_parameters_of(kind: str, options: Any, parameters: float) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    made = getattr(transformers, kind)(**options)
    assert cost_of(made).per_token / 6 == pytest.approx(parameters, rel=0.03)


@pytest.mark.parametrize("experts", [0, 8])
def test_operations_are_those_of_a_transformer_cost(experts: int) -> None:
    made = config(**vars(LLAMA) | (EXPERTS if experts else {}))
    counted = evenstep.TransformerCost(
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        ffn_size=14_336,
        vocab_size=made.vocab_size,
        experts=experts,
        top_k=2 if experts else 0,
    )
    cost = cost_of(made)
    assert cost.per_token == pytest.approx(counted.per_token)
    assert cost.per_pair == pytest.approx(counted.per_pair / ATTENTION_RATE)


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
    for packed in (False, True):
        assert counts(UNKNOWN_MODEL, lengths, packed=packed).tolist() == [
            1,
            120,
            1260,
            18_000,
            48_000,
        ]
    only_tokens = evenstep.PaddedTokenCost()
    assert (counts(only_tokens, lengths, packed=False) == lengths).all()
