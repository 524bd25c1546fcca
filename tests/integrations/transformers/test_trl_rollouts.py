"""TRL's trainers that generate: rollouts change ranks and micro-batches, and no gradient does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import transformers
from launched_rank import as_rank
from ranks import Job, Rank, run
from sharded_on_cpu import CpuAccelerator
from tiny_trainer import gathered, losses, make_trainer

pytest.importorskip("datasets")
pytest.importorskip("trl")
from rollout_trainer import LONGEST, PROMPT, make, save_model

import evenstep
from evenstep.errors import PeerError
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations

WITHIN = 200.0  # seconds; a hang takes longer
MAX_TOKENS = 4 * (PROMPT + LONGEST)
MADE_BEFORE = {"old_per_token_logps": "num_iterations", "ref_per_token_logps": "beta"}
"""Log-probabilities that TRL adds to rollouts before they change ranks, and what asks for them."""


def train(rank: Rank, kind: str, folder: Any, options: dict[str, Any]) -> None:
    as_rank(rank)
    if "fsdp" in options:
        transformers.trainer.Accelerator = CpuAccelerator
    plain = make(kind, folder, **options)
    plain.train()
    balanced = even.balance_rollouts(make(kind, folder, **options), max_tokens=MAX_TOKENS)
    balanced.train()
    limit = 1e-5
    assert losses(balanced) == pytest.approx(losses(plain), rel=limit, abs=limit)
    assert len(plain.seen.gradients) == len(balanced.seen.gradients) == plain.args.max_steps
    for found, expected in zip(balanced.seen.gradients, plain.seen.gradients, strict=True):
        assert (found - expected).norm() < limit * expected.norm()
    theirs, ours = (gathered(each.seen) for each in (plain, balanced))
    for number in range(plain.args.max_steps):
        trained = [sorted(r for rank in of for r in rank.samples[number]) for of in (theirs, ours)]
        assert trained[0] == trained[1]
        kept = {name for name, _ in trained[0][0]} & set(MADE_BEFORE)
        assert kept == {name for name, option in MADE_BEFORE.items() if option in options}
        before, after = (slowest([rank.sizes[number] for rank in of]) for of in (theirs, ours))
        assert all(t <= MAX_TOKENS for rank in ours for t in rank.sizes[number])
        if rank.world_size > 1:
            assert after < before


def slowest(tokens: list[list[int]]) -> int:
    """Tokens of an update as the job waits for them: of the largest micro-batch of each step."""
    assert len({len(each) for each in tokens}) == 1
    return sum(map(max, zip(*tokens)))


CASES: list[tuple[str, dict[str, Any]]] = [
    *(("GRPO", {"loss_type": name}) for name in ("grpo", "dr_grpo", "dapo", "cispo", "sapo")),
    ("GRPO", {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    ("GRPO", {"loss_type": "vespo"}),
    ("GRPO", {"beta": 0.3, "mask_truncated_completions": True}),
    ("RLOO", {"beta": 0.3}),
]


@pytest.mark.parametrize(
    ("kind", "options", "world_size", "accumulate"),
    [*((*case, 2, 3) for case in CASES), (*CASES[0], 1, 3), (*CASES[8], 2, 1)],
)
def test_each_rollout_once_and_the_gradient_is_the_same(
    tmp_path: Path, kind: str, options: dict[str, Any], world_size: int, accumulate: int
) -> None:
    save_model(tmp_path)
    options = {**options, "gradient_accumulation_steps": accumulate}
    run(train, world_size, kind, tmp_path, options, folder=tmp_path, within=WITHIN)


def test_parameters_on_several_ranks(tmp_path: Path) -> None:
    save_model(tmp_path)
    fsdp2 = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    options = {"fsdp": True, "fsdp_config": fsdp2, "gradient_accumulation_steps": 3}
    run(train, 2, "GRPO", tmp_path, options, folder=tmp_path, within=WITHIN)


class Dying:
    """Ends its process where rollouts are about to be exchanged."""

    def compute_loss(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 1 and self.args.process_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]


def until_one_dies(rank: Rank, folder: Any) -> str:
    as_rank(rank)
    trainer = even.balance_rollouts(make("GRPO", folder), max_tokens=MAX_TOKENS)
    trainer.__class__ = type("Dying", (Dying, type(trainer)), {})
    with pytest.raises(PeerError) as error:
        trainer.train()
    return str(error.value)


def test_a_rank_that_is_killed_is_an_error_on_the_other(tmp_path: Path) -> None:
    save_model(tmp_path)
    with Job(until_one_dies, 2, tmp_path, folder=tmp_path) as job:
        outcomes = job.join(WITHIN)
    assert "rank 1 died" in str(outcomes[0].value), outcomes[0].traceback


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_type": "bnpo"}, "'bnpo' divides each micro-batch by its own tokens"),
        ({"loss_type": "mean_of_tokens"}, "'mean_of_tokens' is unknown to evenstep"),
        ({"entropy_coef": 0.1}, "entropy_coef adds to the loss"),
        ({"top_entropy_quantile": 0.5}, "top_entropy_quantile adds to the loss"),
        (
            {"loss_type": "dapo", "gradient_accumulation_steps": 3, "steps_per_generation": 2},
            r"steps_per_generation \* num_iterations = 2",
        ),
    ],
)
def test_what_cannot_be_the_same_gradient_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    save_model(tmp_path)
    with pytest.raises(evenstep.ConfigurationError, match=message):
        even.balance_rollouts(make("GRPO", tmp_path, **options), max_tokens=MAX_TOKENS)


def test_each_function_names_the_other(tmp_path: Path) -> None:
    save_model(tmp_path)
    trainer = make("RLOO", tmp_path)
    with pytest.raises(evenstep.ConfigurationError, match="balance_rollouts"):
        even.install(trainer, policy=evenstep.Even(max_tokens=MAX_TOKENS))
    even.balance_rollouts(trainer, max_tokens=MAX_TOKENS)
    with pytest.raises(evenstep.ConfigurationError, match="balanced already"):
        even.balance_rollouts(trainer, max_tokens=MAX_TOKENS)
    with pytest.raises(evenstep.ConfigurationError, match=r"even\.install"):
        even.balance_rollouts(make_trainer(tmp_path), max_tokens=MAX_TOKENS)
