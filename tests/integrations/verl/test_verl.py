"""verl's engines: rows change ranks and micro-batches, and no gradient does. Run it by
`python -m pytest tests/integrations/verl` in an environment of
`pip install verl==0.9.1 -e '.[test-tools]'`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from ranks import Rank, run

from page_code import run_page

pytest.importorskip("verl.protocol", reason="verl has an environment of its own")

from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers.engine import utils
from verl_on_cpu import ANSWER, PROMPT, make_batch, make_engine, make_loss, save_model

from evenstep.errors import ConfigurationError, SampleError
from evenstep.integrations import verl as even

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(600)]

WITHIN = 200.0  # seconds; a hang takes longer
ROWS, RANKS = 24, 2
MAX_TOKENS = 2 * (PROMPT + ANSWER)
MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
)


class Update:
    """One update of an engine: its gradient, its loss, and rows and tokens per micro-batch."""

    def __init__(self, engine: Any, loss: Any, data: TensorDict) -> None:
        self.rows: list[list[str]] = []
        self.tokens: list[int] = []

        def seen(model_output: Any, data: TensorDict, dp_group: Any = None) -> Any:
            self.rows.append(tensordict_utils.get(data, "uid"))
            lengths = data["input_ids"].offsets().diff()
            packed = tensordict_utils.get(data, "use_remove_padding")
            self.tokens.append(int(lengths.sum() if packed else lengths.max() * len(lengths)))
            return loss(model_output=model_output, data=data, dp_group=dp_group)

        with engine.train_mode():
            found = engine.train_batch(data, seen)
            gradients = [p.grad.full_tensor().flatten() for p in engine.module.parameters()]
        self.gradient = torch.cat(gradients)
        self.loss = sum(found["loss"])


def train(rank: Rank, kind: str, packed: bool, folder: Path) -> Any:
    engine = make_engine(folder, kind, packed)

    def data() -> TensorDict:
        limit = {"max_token_len_per_gpu": MAX_TOKENS}
        return make_batch(ROWS, rank.world_size, rank.rank, packed=packed, **limit)

    def inferred() -> torch.Tensor:
        with engine.eval_mode():
            output = engine.infer_batch(data())["model_output"]
        return output["values" if kind == "critic" else "log_probs"].values()

    losses = {mode: make_loss(kind, mode) for mode in MODES}
    plain = {mode: Update(engine, loss, data()) for mode, loss in losses.items()}
    expected = inferred()
    run_page("post-training.md", "verl")
    for mode, loss in losses.items():
        balanced = Update(engine, loss, data())
        before = plain[mode].gradient
        assert before.norm() > 1e-4
        assert (balanced.gradient - before).norm() < 1e-5 * before.norm(), mode
        losses_of = torch.tensor([plain[mode].loss, balanced.loss], dtype=torch.float64)
        torch.distributed.all_reduce(losses_of)
        torch.testing.assert_close(losses_of[1], losses_of[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(inferred(), expected, rtol=1e-5, atol=1e-6)
    return (plain[mode].rows, plain[mode].tokens), (balanced.rows, balanced.tokens)


@pytest.mark.parametrize("world_size", [1, RANKS])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["actor", "critic"])
def test_each_row_once_and_the_gradient_is_verls(
    tmp_path: Path, kind: str, packed: bool, world_size: int
) -> None:
    save_model(tmp_path)
    found = run(train, world_size, kind, packed, tmp_path, folder=tmp_path, within=WITHIN)
    theirs, ours = zip(*found)
    for ranks in (theirs, ours):
        trained = [uid for rows, _ in ranks for batch in rows for uid in batch]
        assert sorted(trained) == sorted(f"row {n}" for n in range(ROWS))
        assert len({len(tokens) for _, tokens in ranks}) == 1
    assert max(most for _, tokens in ours for most in tokens) <= MAX_TOKENS
    if world_size > 1:
        assert slowest(ours) < slowest(theirs)


def slowest(ranks: Any) -> int:
    """Tokens of an update as the job waits for them: of the largest micro-batch of each step."""
    return sum(map(max, zip(*(tokens for _, tokens in ranks))))


def engine_of_a_test() -> ModuleType:
    module = ModuleType("engine")
    module.prepare_micro_batches = utils.prepare_micro_batches  # type: ignore[attr-defined]
    even.balance_updates(module)
    return module


def columns(rank: Rank) -> None:
    """Each row keeps what belongs to it, in every layout that verl has for a column."""
    share = slice(rank.rank * ROWS // RANKS, (rank.rank + 1) * ROWS // RANKS)
    sizes = [3 + 5 * n % 17 for n in range(ROWS)]
    whole = {
        "input_ids": [torch.full((n,), row) for row, n in enumerate(sizes)],
        "position_ids": [torch.arange(4 * n).view(4, n) for n in sizes],
        "routed_experts": [torch.full((n, 2, 3), row) for row, n in enumerate(sizes)],
        "weight": [torch.tensor(float(row), dtype=torch.bfloat16) for row in range(ROWS)],
        "multi_modal_inputs": [{"pixels": torch.full((n, 2), row)} for row, n in enumerate(sizes)],
    }
    ragged = {"input_ids": 1, "position_ids": 2, "routed_experts": 1}
    data = tensordict_utils.get_tensordict(
        {
            name: tensordict_utils.nested_tensor_from_tensor_list(values[share], ragged[name])
            if name in ragged
            else torch.stack(values[share])
            if name == "weight"
            else values[share]
            for name, values in whole.items()
        },
        {"max_token_len_per_gpu": 10, "sp_size": 4, "global_token_num": [1, 2]},
    )
    group = torch.distributed.group.WORLD
    made, indices = engine_of_a_test().prepare_micro_batches(data=data, dp_group=group)
    assert [n for own in indices for n in own] == list(range(sum(map(len, made))))
    for batch, own in zip(made, indices, strict=True):
        rows = batch["weight"].int().tolist()
        assert len(rows) == len(own)
        assert sum(sizes[row] for row in rows) <= 40
        for name, values in whole.items():
            column = batch[name] if name in (*ragged, "weight") else batch.get(name).tolist()
            for found, row in zip(column.unbind() if name in ragged else column, rows, strict=True):
                torch.testing.assert_close(found, values[row], rtol=0, atol=0)
        assert tensordict_utils.get(batch, "global_token_num") == [1, 2]
    widths = {tuple(batch["position_ids"].values().shape[:1]) for batch in made}
    assert widths == {(4,)}, "tokens of several rows lie behind each other"


def test_columns_of_every_layout_go_with_their_row(tmp_path: Path) -> None:
    run(columns, RANKS, folder=tmp_path, within=WITHIN)


def refused(rank: Rank) -> dict[str, str]:
    prepare, group = engine_of_a_test().prepare_micro_batches, torch.distributed.group.WORLD
    found = {}
    options: dict[str, Any] = {"max_token_len_per_gpu": MAX_TOKENS}
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "fixed": ({"use_dynamic_bsz": False}, {}),
        "outputs": ({"return_model_output": True}, {}),
        "groups": ({"force_group_size": 2}, {}),
        "few": ({}, {"num_batches_divided_by": ROWS}),
        "long": ({"max_token_len_per_gpu": 20}, {}),
    }
    for name, (of_data, of_call) in cases.items():
        data = make_batch(ROWS, rank.world_size, rank.rank, **options)
        tensordict_utils.assign_non_tensor(data, **of_data)
        with pytest.raises((ConfigurationError, SampleError)) as error:
            prepare(data=data, dp_group=group, **of_call)
        found[name] = str(error.value)
    return found


def test_what_would_be_wrong_is_the_same_error_on_all_ranks(tmp_path: Path) -> None:
    found = run(refused, RANKS, folder=tmp_path, within=WITHIN)
    assert found[0] == found[1]
    for name, part in {
        "fixed": "use_dynamic_bsz",
        "outputs": "return_model_output",
        "groups": "force_group_size",
        "few": f"fewer than {ROWS} micro-batches on each of {RANKS} ranks",
        "long": "over max_tokens=20",
    }.items():
        assert part in found[0][name]
