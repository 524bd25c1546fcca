"""What a model keeps for its backward pass is what autograd keeps on the CPU; what fits follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenstep.cost import FittedCost
from evenstep.errors import ConfigurationError
from evenstep.plan.policies.by_name import POLICIES
from evenstep.tools.advise import LengthSample, advise, set_up
from evenstep.tools.advise.model_on_gpu import ModelFacts, ModelMemory, Way, load_config

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}


def small_model(kind: str, device: str) -> Any:
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    with torch.device(device):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return made.train()


def kept(model: Any, tokens: int) -> int:
    """Bytes that autograd keeps of a real pass, weights left out."""
    weights = {each.data_ptr() for each in model.parameters()}
    found: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    ids = torch.arange(tokens)[None] % 300
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=ids, labels=ids, use_cache=False)
    return sum(each.nbytes() for place, each in found.items() if place not in weights)


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_a_token_takes_what_a_real_pass_keeps_of_it(kind: str) -> None:
    told = ModelMemory.of(small_model(kind, "meta"))
    real = small_model(kind, "cpu")
    assert told.parameters == sum(each.numel() for each in real.parameters())
    each = (kept(real, 192) - kept(real, 128)) / 64
    assert told.token == pytest.approx(each + 8 * 300, rel=0.01)
    real.gradient_checkpointing_enable({"use_reentrant": False})
    inputs = (kept(real, 192) - kept(real, 128)) / 64
    assert told.recomputed == pytest.approx(inputs + (each - inputs) / 3 + 8 * 300, rel=0.01)


MEMORY = ModelMemory(parameters=10**9, token=1e6, recomputed=2e5)


def test_what_fits_is_the_rest_of_the_memory() -> None:
    # 0.9 x 80 GiB is 77,309 MB; states take 16,000 MB, or 2,000 of each of 8 ranks.
    fits = list(MEMORY.fits(80, 8))
    assert [fit.tokens for fit in fits] == [61_309, 306_547, 75_309, 376_547]
    assert [fit.recomputes for fit in fits] == [False, True, False, True]


def sample(*lengths: int) -> LengthSample:
    return LengthSample(name="d", lengths=np.array(lengths), total=None, longest=None, how="")


def test_the_fastest_way_that_holds_the_longest_sample_is_taken() -> None:
    fits = [
        Way(900, False, "plain"),
        Way(4000, True, "twice"),
        Way(9000, False, "shards"),
    ]
    setup = set_up(sample(100, 1000), world_size=2, fits=fits)
    assert (setup.max_tokens, setup.recomputes) == (3840, True)
    assert "by memory; twice" in setup.reasons[0]
    assert setup.sweep == (2304, 3840)  # from 4 mean lengths on, up to what fits
    assert set_up(sample(100, 1000), world_size=2, max_tokens=1024, fits=fits).max_tokens == 1024
    with pytest.raises(ConfigurationError, match=r"needs 40,192 tokens, and 9,000 fit \(shards"):
        set_up(sample(10_000), world_size=2, fits=fits)


def test_updates_are_those_that_the_user_adds_up() -> None:
    setup = set_up(sample(100, 300), world_size=4, batch_size=8, accumulate=2)
    assert setup.update_tokens == 4 * 8 * 2 * 200


def test_tokens_per_second_are_the_rate_over_what_a_token_takes() -> None:
    lengths = sample(*[512] * 64)
    cost = FittedCost(per_group=0.0, per_token=2.0, per_pair=1 / 256)  # 4 for each token
    for recomputes, share in ((False, 1.0), (True, 0.75)):
        setup = set_up(lengths, world_size=1, fits=[Way(2048, recomputes, "")])
        facts = ModelFacts(rate=8e6)
        told = advise(lengths, POLICIES, setup=setup, cost=cost, packed=True, facts=facts)
        figures = told.prediction("even-packed").figures
        assert figures["efficiency"] == pytest.approx(1.0)
        assert figures["tokens_per_second"] == pytest.approx(2e6 * share)


def config_file(folder: Path, **fields: Any) -> str:
    transformers.LlamaConfig(**{**SIZES, **fields}).save_pretrained(folder)
    return str(folder / "config.json")


def test_facts_are_those_of_the_configuration_and_the_gpu(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    known = ModelFacts.of(path, "h100", 8)
    assert known.packs
    assert known.rate == 440e12
    assert len(known.fits) == 4
    other = ModelFacts.of(str(tmp_path), "l40s", 8)
    assert other.rate == 0
    assert "no speed was measured" in other.notes[-1]
    assert other.fits[0].tokens < known.fits[0].tokens
    assert ModelFacts.of(path, None, 8).fits == ()
    with pytest.raises(ConfigurationError, match="gpu='h1' must be one of a100"):
        ModelFacts.of(path, "h1", 8)


def test_nothing_is_downloaded_and_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no/such-model.*config\.json"):
        load_config("no/such-model")
    transformers.BertConfig(num_hidden_layers=1).save_pretrained(tmp_path)
    told = ModelFacts.of(str(tmp_path), "h100", 1)
    assert not told.packs or told.fits
