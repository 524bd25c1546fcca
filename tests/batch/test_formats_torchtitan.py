from __future__ import annotations

import pytest
import torch

from evenstep.batch import PackCollator
from evenstep.batch.formats import to_torchtitan
from evenstep.errors import CollateError

SAMPLES = [
    {"input_ids": [1, 2, 3], "labels": [1, -100, 3]},
    {"input_ids": [4], "labels": [4]},
    {"input_ids": [5, 6], "labels": [5, 6]},
]


def test_it_is_the_input_with_positions_and_the_labels_of_the_next_tokens():
    inputs, labels = to_torchtitan(PackCollator(pad_to_multiple_of=8)(SAMPLES))
    assert list(inputs) == ["input", "positions"]
    assert inputs["input"].tolist() == [[1, 2, 3, 4, 5, 6, 0, 0]]
    assert inputs["positions"].tolist() == [[0, 1, 2, 0, 0, 1, 0, 1]]
    assert labels.tolist() == [[-100, 3, -100, -100, 6, -100, -100, -100]]
    assert inputs["input"].dtype == inputs["positions"].dtype == labels.dtype == torch.int64


def test_other_fields_become_arguments_of_the_model():
    samples = [{"input_ids": [1, 2], "kinds": torch.tensor([[3], [4]]), "name": "a"}]
    inputs, _ = to_torchtitan(PackCollator()(samples))
    assert inputs["kinds"].tolist() == [[[3], [4]]]
    assert inputs["name"] == ["a"]


def test_labels_shifted_by_the_dataset_are_kept_when_told():
    samples = [{"input_ids": [1, 2], "labels": [2, 7]}]
    _, labels = to_torchtitan(PackCollator(mask_first_label=False)(samples), labels_shifted=True)
    assert labels.tolist() == [[2, 7]]


@pytest.mark.parametrize("positions", [[1, 2], [0, 0]])
def test_positions_that_do_not_tell_documents_are_refused(positions):
    batch = PackCollator()([{"input_ids": [1, 2], "position_ids": positions}])
    with pytest.raises(CollateError, match="not 0 exactly where a document begins"):
        to_torchtitan(batch)
