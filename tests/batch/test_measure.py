from __future__ import annotations

import pickle
import sys
from collections import UserDict, namedtuple
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import Measure, length_of, patches_of, supervised_of
from evenstep.batch.count_media import media_of
from evenstep.errors import ConfigurationError, SampleError

Named = namedtuple("Named", ["input_ids", "labels"])
Pair = namedtuple("Pair", ["tokens", "target"])


@dataclass
class Item:
    input_ids: Any
    labels: Any = None


@dataclass
class Picture:
    pixels: Any = field(default_factory=list)


def measured(sample: Any, **options: Any) -> list[int]:
    return Measure(**options)([sample], ["sample 17"])[0].tolist()


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda ids: {"text": "x", "input_ids": ids},
        lambda ids: UserDict(input_ids=ids),
        lambda ids: Item(ids),
        lambda ids: Named(ids, None),
        lambda ids: Pair(ids, 3),
        lambda ids: (ids, 3),
        lambda ids: [ids, "a"],
    ],
)
def test_length_is_found_in_every_kind_of_sample(wrap, make):
    assert length_of(wrap(make([5, 6, 7]))) == 3


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_length_of_a_bare_sequence_is_its_number_of_tokens(make):
    assert length_of(make([5, 6, 7, 8])) == 4


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"text": "a", "image": 1}, ["'text', 'image'", "length_fn="]),
        ({"input_ids": torch.ones(1, 12)}, ["(1, 12)", "[0]", "length_fn="]),
        ({"input_ids": [[1, 2], [3]]}, ["list of list", "length_fn="]),
        ({"input_ids": "abc"}, ["a str", "length_fn="]),
        (torch.tensor(3), ["shape ()", "length_fn="]),
        (Picture(), ["a Picture", "length_fn="]),
        ((3, 4), ["a int", "length_fn="]),
        ("text", ["a str", "length_fn="]),
        (None, ["a NoneType", "length_fn="]),
    ],
)
def test_unknown_length_names_what_was_found_and_the_remedy(sample, words):
    with pytest.raises(SampleError) as caught:
        Measure()([sample], ["sample 17"])
    for word in ["sample 17", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([-100, -100, 13, 14], 2),  # prompt masked
        ([11, 12, 13, 14], 3),  # aligned copy: nothing predicts the first
        ([11, -100, 13, 14], 2),  # aligned copy with a hole
        ([12, 13, 14, -100], 3),  # shifted in the dataset: all count
        ([0, 1, 0, 1], 4),  # classes of tokens: all count
        ([11, 12, 13, 99], 4),  # agrees at first, but is no copy
        ([-100, -100, -100, -100], 0),
        ([7, 8], 2),  # an encoder-decoder's labels
    ],
)
def test_supervised_tokens_are_the_labels_that_bear_loss(labels, expected, make):
    tokens = [11, 12, 13, 14]
    for sample in (
        {"input_ids": make(tokens), "labels": make(labels)},
        Item(make(tokens), make(labels)),
        Named(make(tokens), make(labels)),
    ):
        assert supervised_of(sample, 4) == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, -100])), min_size=1))
def test_supervised_tokens_equal_the_plain_definition(pairs):
    tokens = [token for token, _ in pairs]
    labels = [token + shift if shift >= 0 else -100 for token, shift in pairs]
    copy = labels[0] != -100 and all(a in (-100, b) for a, b in zip(labels, tokens))
    expected = sum(label != -100 for label in labels) - copy
    length = len(tokens)
    for make in (list, np.array, torch.tensor):
        assert (
            supervised_of({"input_ids": make(tokens), "labels": make(labels)}, length) == expected
        )
    mixed = {"input_ids": torch.tensor(tokens), "labels": labels}
    assert supervised_of(mixed, length) == expected


def test_supervised_tokens_are_what_a_causal_model_averages_its_loss_over():
    loss_utils = pytest.importorskip("transformers.loss.loss_utils")
    tokens = torch.arange(1, 9)
    for labels in (tokens.clone(), torch.where(tokens < 4, -100, tokens)):
        logits = torch.randn(1, 8, 16)
        mean = loss_utils.ForCausalLMLoss(logits, labels[None], vocab_size=16)
        total = loss_utils.ForCausalLMLoss(
            logits, labels[None], vocab_size=16, num_items_in_batch=torch.tensor(1)
        )
        count = supervised_of({"input_ids": tokens, "labels": labels}, 8)
        torch.testing.assert_close(mean * count, total)


@pytest.mark.parametrize(
    "label", [3, 0.5, True, np.int64(3), torch.tensor(3), np.array(1.5), "spam"]
)
@pytest.mark.parametrize("name", ["labels", "label", "label_ids"])
def test_a_scalar_label_counts_once(name, label):
    assert supervised_of({"input_ids": [1, 2, 3], name: label}, 3) == 1


def test_bfloat16_and_differentiable_labels_are_counted():
    labels = torch.tensor([1.0, -100.0, 2.0])
    assert supervised_of({"input_ids": [4, 5, 6], "labels": labels.bfloat16()}, 3) == 2
    assert supervised_of({"input_ids": [4, 5, 6], "labels": labels.requires_grad_()}, 3) == 2


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ({"input_ids": [1, 2, 3]}, 2),
        ({"input_ids": [1, 2, 3], "labels": None}, 2),
        (torch.tensor([1, 2, 3]), 2),
        (Item([1, 2, 3]), 2),
        (([1, 2, 3], [4, 5, 6]), 3),  # who knows what the second element is
        ({"image": 1}, 3),  # not known to predict tokens
    ],
)
def test_unlabelled_tokens_are_predicted_from_those_before_them(sample, expected):
    assert supervised_of(sample, 3) == expected


def test_labels_that_cannot_be_counted_ask_for_their_number():
    for labels in (["a", "b"], {"boxes": 1}, [[1], [2, 3]]):
        with pytest.raises(SampleError, match=r"sample 17: its labels .*SampleCounts\(supervised="):
            measured({"input_ids": [1, 2], "labels": labels})


def test_a_grid_that_holds_no_triples_is_refused():
    with pytest.raises(SampleError, match=r"image_grid_thw .*\(2, 2\).*SampleCounts\(patches="):
        patches_of({"image_grid_thw": torch.ones(2, 2)})


def test_samples_are_measured_while_another_thread_imports_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # as far as it has come
    sample = {"input_ids": np.arange(5), "labels": [-100, -100, 1, 2, 3]}
    assert measured(sample) == [5, 3, 0, 0, 0]


def test_measure_gives_one_int64_row_per_sample():
    samples = [{"input_ids": [1] * n, "labels": [-100] * (n - 1) + [1]} for n in (4, 2, 9)]
    result = Measure()(samples, ["a", "b", "c"])
    assert result.dtype == np.int64
    assert result.tolist() == [[4, 1, 0, 0, 0], [2, 1, 0, 0, 0], [9, 1, 0, 0, 0]]
    assert Measure()([], []).shape == (0, 5)


def test_functions_of_the_user_replace_the_defaults():
    sample = {"text": "abcdef"}
    options = {
        "length_fn": lambda s: len(s["text"]),
        "supervised_fn": lambda s: torch.tensor(4),
        "patches_fn": lambda s: np.int32(9),
    }
    assert measured(sample, **options) == [6, 4, 0, 0, 0]
    assert measured(sample, **options, count_patches=True) == [6, 4, 9, 1, 81]


@pytest.mark.parametrize(
    ("sample", "patches", "images", "pairs"),
    [
        ({"image_grid_thw": torch.tensor([[1, 2, 3], [1, 4, 5]])}, 26, 2, 36 + 400),
        # A video's frames attend to themselves.
        ({"video_grid_thw": torch.tensor([[3, 2, 2]])}, 12, 1, 3 * 16),
        ({"image_grid_thw": [[1, 1, 2]], "video_grid_thw": [[2, 1, 3]]}, 8, 2, 4 + 2 * 9),
        ({"image_grid_thw": torch.empty(0, 3)}, 0, 0, 0),
        ({"pixel_values": torch.zeros(7, 12)}, 7, 1, 49),
        ({"pixel_values": torch.zeros(3, 8, 8)}, 1, 1, 1),
        ({"pixel_values": torch.zeros(2, 3, 8, 8)}, 2, 2, 2),
        ({"pixel_values": torch.zeros(2, 5, 3, 8, 8)}, 10, 2, 10),
        ({"pixel_values": [torch.zeros(3, 8, 8)] * 3}, 3, 3, 3),
        ({"input_features": torch.zeros(2, 80, 30)}, 0, 2, 0),
        ({"input_features": torch.zeros(80, 30)}, 0, 1, 0),
        ({"input_ids": [1, 2]}, 0, 0, 0),
    ],
)
def test_media_are_counted_with_the_pairs_of_each_image(sample, patches, images, pairs):
    assert media_of(sample) == (patches, images, pairs)
    columns = measured(
        {"input_ids": [1, 2, 3], **sample}, length_fn=lambda s: 3, count_patches=True
    )
    assert columns[2:] == [patches, images, pairs]


@given(st.lists(st.tuples(*[st.integers(1, 6)] * 3), max_size=5))
def test_grids_are_counted_as_their_patches_one_by_one(grid):
    patches = [(frame, row) for row, (t, h, w) in enumerate(grid) for frame in range(t * h * w)]
    counts = media_of({"image_grid_thw": torch.tensor(grid).reshape(-1, 3)})
    assert counts.patches == len(patches)
    assert counts.images == len(grid)
    assert counts.patch_pairs == sum((h * w) ** 2 for t, h, w in grid for _ in range(t))


def test_a_function_may_count_the_patches_of_each_image():
    for each in ([4, 6], (4, 6), np.array([4, 6])):
        counts = measured([1, 2], patches_fn=lambda sample, each=each: each, count_patches=True)
        assert counts[2:] == [10, 2, 52]
    grid = {"input_ids": [1], "image_grid_thw": [[1, 1, 1]] * 2}
    # All of a sample are shared out over the images that it has.
    assert measured(grid, patches_fn=lambda s: 10, count_patches=True)[2:] == [10, 2, 50]
    with pytest.raises(SampleError, match=r"patches_fn .* returned -1; it must return an integer"):
        measured([1], patches_fn=lambda s: [3, -1], count_patches=True)


@pytest.mark.parametrize("role", ["length_fn", "supervised_fn", "patches_fn"])
@pytest.mark.parametrize(
    "value", [-1, 2.0, 1.5, "3", None, True, 2**31, torch.tensor([1, 2]), torch.tensor(1.0)]
)
def test_what_is_no_count_is_refused_and_the_function_named(role, value):
    def count_it(sample):
        return value

    with pytest.raises(SampleError, match=rf"sample 17: {role} \(.*count_it\) returned"):
        measured({"input_ids": [1, 2]}, **{role: count_it}, count_patches=True)


@pytest.mark.parametrize("role", ["length_fn", "supervised_fn", "patches_fn"])
def test_a_function_that_raises_is_named_with_its_cause(role):
    def broken(sample):
        return sample["nothing"]

    with pytest.raises(SampleError, match=rf"sample 17: {role} .*broken\) raised KeyError") as e:
        measured({"input_ids": [1, 2]}, **{role: broken}, count_patches=True)
    assert isinstance(e.value.__cause__, KeyError)


def test_the_culprit_is_named_among_good_samples():
    samples = [{"input_ids": [1, 2]}, {"input_ids": []}, {"input_ids": [3]}]
    with pytest.raises(SampleError, match=r"sample 8 has length 0.*filter it in the dataset"):
        Measure()(samples, ["sample 7", "sample 8", "sample 9"])


def test_more_supervised_tokens_than_length_is_refused():
    with pytest.raises(SampleError, match=r"sample 17 has 5 supervised .* length of 2.*length_fn="):
        measured({"input_ids": [1, 2], "labels": [3, 4, 5, 6, 7]})
    both = measured(
        {"input_ids": [1, 2], "labels": [3, 4, 5, 6, 7]},
        length_fn=lambda s: len(s["input_ids"]) + len(s["labels"]),
    )
    assert both == [7, 5, 0, 0, 0]


def test_options_that_are_no_functions_are_refused():
    with pytest.raises(ConfigurationError, match="length_fn='input_ids'"):
        Measure(length_fn="input_ids")  # type: ignore[arg-type]


def test_measure_and_its_errors_survive_pickling():
    measure = pickle.loads(pickle.dumps(Measure(length_fn=len, count_patches=True)))
    assert measure([[1, 2, 3]], ["a"]).tolist() == [[3, 2, 0, 0, 0]]
    with pytest.raises(SampleError) as caught:
        measure([[]], ["sample 3"])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
