"""What a MicroBatchIterator refuses, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

parallel_state = pytest.importorskip(
    "megatron.core.parallel_state", reason="megatron-core is not installed"
)

import evenstep  # noqa: E402
from documents import Documents  # noqa: E402
from evenstep.errors import CollateError, MismatchError  # noqa: E402
from evenstep.integrations.megatron import MicroBatchIterator  # noqa: E402

pytestmark = pytest.mark.integrations
DOCUMENTS = Documents(20, longest=64)
POLICY = evenstep.Even(96, packed=True)


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def config(**changes: Any) -> Any:
    return SimpleNamespace(
        **{
            "calculate_per_token_loss": True,
            "pipeline_model_parallel_size": 1,
            "variable_seq_lengths": False,
            **changes,
        }
    )


def make(changed: Any = None, policy: Any = POLICY, k: int = 2, **options: Any) -> Any:
    return MicroBatchIterator(
        DOCUMENTS, changed or config(), num_microbatches=k, policy=policy, **options
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"changed": config(calculate_per_token_loss=False)}, "calculate_per_token_loss is False"),
        ({"policy": evenstep.TokenBudget(96)}, "TokenBudget makes padded batches"),
        (
            {"policy": evenstep.WorkloadPacking(96, micro_batches=3)},
            "makes 3 micro-batches .* takes 2",
        ),
    ],
)
def test_what_would_train_wrong_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(evenstep.ConfigurationError, match=message):
        make(**arguments)


def test_a_pipeline_with_one_shape_refuses_another() -> None:
    of_one_shape = config(pipeline_model_parallel_size=2)
    iterator = make(of_one_shape)
    with pytest.raises(CollateError, match="set variable_seq_lengths, or pad"):
        list(islice(iterator, 20))
    iterator.close()
    iterator = make(of_one_shape, collate_fn=evenstep.PackCollator(pad_to_multiple_of=96))
    assert {next(iterator)["tokens"].shape for _ in range(20)} == {(1, 96)}
    iterator.close()


def test_documents_reach_megatron_with_the_padding_behind_them() -> None:
    iterator = make(collate_fn=evenstep.PackCollator(pad_to_multiple_of=96))
    batch = next(iterator)
    assert "attention_mask" not in batch
    assert batch["cu_seqlens"][0, -1] == 96
    assert batch["cu_seqlens"].equal(batch["packed_seq_params"].cu_seqlens_q[None])
    assert int(batch["max_seqlen"]) == int(batch["cu_seqlens"].diff().max())
    assert iterator.values.tokens == iterator.step.global_tokens
    iterator.close()


def test_a_state_belongs_between_two_updates() -> None:
    iterator = make()
    iterator.state_dict()
    next(iterator)
    with pytest.raises(evenstep.ConfigurationError, match="1 micro-batches into an update of 2"):
        iterator.save_state()
    next(iterator)
    state = iterator.save_state()
    with pytest.raises(MismatchError, match="saved with another data loader"):
        iterator.load_state_dict({"consumed_samples": 1})
    again = make()
    again.load_state_dict(state)
    assert next(again)["tokens"].equal(next(iterator)["tokens"])
    again.close()
    iterator.close()
