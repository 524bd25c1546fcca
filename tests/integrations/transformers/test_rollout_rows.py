"""Rollouts without their padding, and micro-batches of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evenstep.errors import ConfigurationError
from evenstep.integrations.transformers.rollouts import batch_of, rows_of


def micro_batch() -> dict[str, Any]:
    """Three rollouts, of which the last is masked as a whole, with what vLLM and tools add."""
    return {
        "prompt_ids": torch.tensor([[0, 0, 5], [6, 7, 8], [0, 9, 4]]),
        "prompt_mask": torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 1]]),
        "completion_ids": torch.tensor([[3, 2, 0, 0], [3, 3, 3, 2], [3, 3, 3, 3]]),
        "completion_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0]]),
        "old_per_token_logps": -torch.arange(12.0).reshape(3, 4),
        "importance_sampling_ratio": torch.tensor([[0.5], [1.5], [2.5]]),
        "advantages": torch.tensor([1.0, -1.0, 0.5]),
        "num_items_in_batch": torch.tensor(6),
        "ref_per_token_logps": None,
    }


def test_rows_lose_their_padding_and_micro_batches_get_what_they_need() -> None:
    rows, shared = rows_of(micro_batch())
    assert shared == {"num_items_in_batch": 6, "ref_per_token_logps": None}
    assert [len(row["prompt_ids"]) for row in rows] == [1, 3, 2]
    assert [len(row["completion_ids"]) for row in rows] == [2, 4, 1]
    found = batch_of([rows[2], rows[0]], torch.device("cpu"))
    expected = {
        "prompt_ids": [[9, 4], [0, 5]],
        "prompt_mask": [[1, 1], [0, 1]],
        "completion_ids": [[3, 0], [3, 2]],
        "completion_mask": [[0, 0], [1, 1]],
        "tool_mask": [[0, 0], [1, 0]],
        "old_per_token_logps": [[-8.0, 0.0], [0.0, -1.0]],
        "importance_sampling_ratio": [[2.5], [0.5]],
        "advantages": [0.5, 1.0],
    }
    assert {name: column.tolist() for name, column in found.items()} == expected


@pytest.mark.parametrize(
    "column", [[1, 1, 1], torch.zeros(3, 2, 2), torch.zeros(5, 4)], ids=["list", "3", "rows"]
)
def test_images_are_refused(column: Any) -> None:
    with pytest.raises(ConfigurationError, match="'pixel_values' of shape"):
        rows_of({**micro_batch(), "pixel_values": column})
