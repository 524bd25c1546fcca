"""Speech: labels of another length than the sound, and a loss that is a mean over samples. The
gradient of an update is that of its samples one by one. `tests/jobs` has other kinds of labels."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import Seen, Witness, arguments, gathered, losses, together
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer, Wav2Vec2Config, Wav2Vec2ForCTC
from update_checks import gradient_of

import evenstep
from evenstep.errors import ConfigurationError
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
COUNT = 36
CONFIG = Wav2Vec2Config(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    vocab_size=12,
    conv_dim=(8, 8),
    conv_kernel=(4, 4),
    conv_stride=(4, 2),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    feat_extract_norm="layer",
    do_stable_layer_norm=True,
    apply_spec_augment=False,
    ctc_loss_reduction="mean",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
    layerdrop=0.0,
    feat_proj_dropout=0.0,
    final_dropout=0.0,
)


class Speech(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        sound = torch.randn(160 + 40 * (index % 7), generator=generator)
        labels = torch.randint(1, 12, (1 + index % 4,), generator=generator)
        return {"input_values": sound, "labels": labels}


def pad_sounds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sounds = [row["input_values"] for row in rows]
    return {
        "input_values": pad_sequence(sounds, True),
        "attention_mask": pad_sequence([torch.ones_like(s).long() for s in sounds], True),
        "labels": pad_sequence([row["labels"] for row in rows], True, -100),
    }


def make(folder: Any, seen: Seen, **options: Any) -> Trainer:
    """A trainer that notes the numbers of the samples that bear a loss."""
    known = {float(Speech()[n]["input_values"][0]): n for n in range(COUNT)}

    def note(model: Any, args: Any, inputs: dict[str, Any]) -> None:
        if model.training:
            rows = zip(inputs["input_values"][:, 0].tolist(), inputs["labels"], strict=True)
            seen.samples[-1] += [known[first] for first, own in rows if (own != -100).any()]

    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(copy.deepcopy(CONFIG))
    model.register_forward_pre_hook(note, with_kwargs=True)
    trainer = Trainer(
        model=model,
        args=arguments(folder, remove_unused_columns=False, **options),
        train_dataset=Speech(),
        data_collator=pad_sounds,
    )
    trainer.add_callback(Witness(seen))
    policy = evenstep.Even(max_tokens=64)
    return even.install(
        trainer, policy=policy, length_fn=lambda sample: len(sample["input_values"]) // 8
    )


def train(rank: Rank, folder: Any, across: bool) -> None:
    as_rank(rank)
    seen = Seen()
    options = {"gradient_accumulation_steps": 2, "average_tokens_across_devices": across}
    trainer = make(folder, seen, **options)
    trainer.train()
    updates = [update for update in together(gathered(seen)) if update]
    assert sorted(n for update in updates for n in update) == list(range(COUNT))
    model = trainer.model.eval()
    for update, gradient, logged in zip(updates, seen.gradients, losses(trainer), strict=True):
        model.zero_grad()
        means = [model(**pad_sounds([Speech()[n]])).loss / len(update) for n in update]
        torch.stack(means).sum().backward()
        expected = gradient_of(model)
        assert (gradient - expected).norm() < 1e-5 * expected.norm()
        assert logged == pytest.approx(float(sum(means)), rel=1e-5, abs=5.1e-5)


@pytest.mark.parametrize("across", [False, True])
def test_two_ranks(tmp_path, across: bool) -> None:
    run(train, 2, tmp_path, across, folder=tmp_path, within=150)


def test_a_loss_that_is_a_sum_is_refused_and_the_remedy_trains(tmp_path) -> None:
    trainer = make(tmp_path, Seen())
    trainer.model.config.ctc_loss_reduction = "sum"
    with pytest.raises(ConfigurationError, match=r"config.ctc_loss_reduction='mean'"):
        trainer.train()
    trainer.model.config.ctc_loss_reduction = "mean"
    trainer.train()
    assert trainer.state.global_step > 2
