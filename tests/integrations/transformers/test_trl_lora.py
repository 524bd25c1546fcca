"""LoRA under TRL's SFTTrainer: the gradient of each update, padded and packed, is that of its
documents, each alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from launched_rank import as_rank
from ranks import Rank, run
from sharded_on_cpu import CpuAccelerator
from tiny_trainer import (
    POLICY,
    Seen,
    Witness,
    documents,
    gathered,
    tiny_config,
    tokenizer,
    trl_arguments,
)
from transformers import LlamaForCausalLM
from update_checks import alone, documents_in

from evenstep.integrations import transformers as even

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.integrations

ROWS = [documents()[index] for index in range(len(documents()))]
PLACES = {tuple(row["input_ids"].tolist()): index for index, row in enumerate(ROWS)}
FSDP2 = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}


def lora() -> Any:
    """Weights that are not 0, so that all of them have a gradient."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny_config())
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False
    )
    return peft.get_peft_model(model, config)


def train(rank: Rank, folder: Any, packed: bool, sharded: bool) -> None:
    as_rank(rank)
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "max_length": None}
    if sharded:
        transformers.trainer.Accelerator = CpuAccelerator
        options |= {"fsdp": True, "fsdp_config": FSDP2}
    model, seen = lora(), Seen()

    def note(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if packed:
            assert len(kwargs["input_ids"]) == 1
        seen.samples[-1] += [PLACES[each] for each in documents_in(kwargs)]

    model.get_base_model().register_forward_pre_hook(note, with_kwargs=True)
    fields = {name: [row[name].tolist() for row in ROWS] for name in ("input_ids", "labels")}
    trainer = trl.SFTTrainer(
        model=model,
        args=trl_arguments(trl.SFTConfig, folder, pad_token="<pad>", **options),
        train_dataset=datasets.Dataset.from_dict(fields),
        processing_class=tokenizer(),
    )
    trainer.add_callback(Witness(seen))
    even.install(trainer, policy=POLICY, packed=packed).train()
    held = sum(p.to_local().numel() if sharded else p.numel() for p in model.parameters())
    assert (held < sum(p.numel() for p in model.parameters())) == sharded
    same = zip(*gathered(seen.samples[:-1]), strict=True)
    updates = [[i for each in update for i in each] for update in same]
    assert sorted(i for update in updates for i in update) == list(range(len(ROWS)))
    theirs = lora()
    for update, gradient in zip(updates, seen.gradients, strict=True):
        _, expected = alone(theirs, ROWS, update)
        assert gradient.count_nonzero() == expected.count_nonzero() > 0
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())


@pytest.mark.parametrize(
    ("ranks", "packed", "sharded"),
    [(1, False, False), (1, True, False), (2, False, False), (2, True, True)],
)
def test_every_update_has_the_gradient_of_its_documents(
    tmp_path: Any, ranks: int, packed: bool, sharded: bool
) -> None:
    run(train, ranks, tmp_path, packed, sharded, folder=tmp_path, within=150)
