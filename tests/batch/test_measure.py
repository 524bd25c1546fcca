from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import Measure, length_of, supervised_of
from evenstep.batch.count_media import media_of
from evenstep.batch.labels import Supervised
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.label_reading import FIRST, UNKNOWN, UNSHIFTED


def measured(sample: Any, **options: Any) -> list[int]:
    return Measure(**options)([sample], ["sample 17"])[0].tolist()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda ids: {"text": "x", "input_ids": ids},
        lambda ids: UserDict(input_ids=ids),
        lambda ids: (ids, 3),
        lambda ids: [ids, "a"],
        lambda ids: ids,
    ],
)
def test_length_is_found_in_every_kind_of_sample(wrap):
    for make in (list, np.array, torch.tensor):
        assert length_of(wrap(make([5, 6, 7]))) == 3


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([11, -100, 13, 14], (2, FIRST)),  # aligned copy: the first counts if nothing is shifted
        ([12, 13, 14, -100], (2, FIRST | UNSHIFTED)),  # shifted in the dataset
        ([7, 8], (2, UNSHIFTED)),  # an encoder-decoder's labels
        ([4, 5, 6, 7, 8, -100], (5, UNSHIFTED)),
        ([0.5, 1.5, -100.0, 2.5], (3, UNSHIFTED)),  # a number for each token
        ([[1, 0], [0, -100], [1, 1], [0, 0]], (7, UNSHIFTED)),  # several for each
    ],
)
def test_labels_show_what_counts_and_how_it_is_read(labels, expected, make):
    tokens = [11, 12, 13, 14]
    sample = {"input_ids": make(tokens), "labels": make(labels)}
    assert supervised_of(sample, 4) == expected
    causal, shows = expected
    assert measured(sample, labels="causal")[1::4] == [causal, 0]
    assert measured(sample, labels="every")[1::4] == [causal + (shows & FIRST), 0]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, -100])), min_size=1))
def test_supervised_tokens_equal_the_plain_definition(pairs):
    tokens = [token for token, _ in pairs]
    labels = [token + shift if shift >= 0 else -100 for token, shift in pairs]
    causal = sum(label != -100 for label in labels[1:])
    shows = 0
    if labels[0] != -100:
        copy = all(a in (-100, b) for a, b in zip(labels, tokens))
        shows = FIRST if copy else FIRST | UNSHIFTED
    length = len(tokens)
    for make in (list, np.array, torch.tensor):
        sample = {"input_ids": make(tokens), "labels": make(labels)}
        assert supervised_of(sample, length) == (causal, shows)
    assert supervised_of({"input_ids": torch.tensor(tokens), "labels": labels}, length) == (
        causal,
        shows,
    )


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ({"input_ids": [1, 2, 3]}, (2, 0)),  # predicted from those before them
        ({"input_ids": [1, 2, 3], "labels": None}, (2, 0)),
        (torch.tensor([1, 2, 3]), (2, 0)),
        # A scalar label counts once.
        ({"input_ids": [1, 2, 3], "labels": 3}, (1, 0)),
        ({"input_ids": [1, 2, 3], "label": np.array(1.5)}, (1, 0)),
        ({"input_ids": [1, 2, 3], "label_ids": torch.tensor(3)}, (1, 0)),
        ({"input_ids": [1, 2, 3], "labels": "spam"}, (1, 0)),
        ({"input_ids": [1, 2, 3], "start_positions": 1, "end_positions": 2}, (1, 0)),
        # Pairs: labels of tokens, one class, several of another length, or what is not known.
        (([1, 2, 3], [-100, 5, 6]), (2, 0)),
        (([1, 2, 3], [1, 2, 3]), (2, FIRST)),
        (([1, 2, 3], [4, -100, 6]), (1, FIRST | UNSHIFTED)),
        (([1, 2, 3], 4), (1, 0)),
        (([1, 2, 3], torch.tensor(4.5)), (1, 0)),
        (([1, 2, 3], [4, 5]), (2, UNSHIFTED)),
        (([1, 2, 3], [4, 5, -100, -100]), (2, UNSHIFTED)),
        (([1, 2, 3], torch.tensor([0.0, 1.0])), (2, UNSHIFTED)),
        (([1, 2, 3], "a"), (3, 0)),
        (([1, 2, 3], {}), (3, 0)),
        (([1, 2, 3], 4, 5), (3, 0)),
        ({"image": 1}, (3, 0)),  # not known to predict tokens
        # A decoder's inputs prove that nothing is shifted inside.
        (
            {"input_ids": [1, 2, 3], "labels": [1, 2, 3], "decoder_input_ids": [0, 1, 2]},
            (2, FIRST | UNSHIFTED),
        ),
    ],
)
def test_what_other_samples_supervise(sample, expected):
    assert supervised_of(sample, 3) == expected


@pytest.mark.parametrize(
    "labels", [["a", "b"], {"boxes": 1}, [0.5, float("nan")], [[1], ["a"]], []]
)
def test_labels_that_cannot_be_counted_ask_for_their_number(labels):
    sample = {"input_ids": [1, 2], "labels": labels}
    with pytest.raises(SampleError, match=r"sample 17: its labels .*SampleCounts\(supervised="):
        measured(sample)
    assert measured(sample, supervised_fn=lambda s: 2)[:2] == [2, 2]


@pytest.mark.parametrize(
    ("sample", "options"),
    [
        ({"tokens": [1, 2, 3], "labels": [1, 2, 3]}, {"length_fn": lambda s: 3}),
        ({"inputs_embeds": torch.zeros(3, 4), "labels": [1, 2, 3]}, {"length_fn": lambda s: 3}),
        ({"inputs_embeds": torch.zeros(3, 4), "labels": [1, 2, 3]}, {"needs_lengths": False}),
    ],
)
def test_labels_without_tokens_to_compare_them_with_ask_how_they_are_read(sample, options):
    assert supervised_of(sample, 3) == (2, FIRST | UNKNOWN)
    with pytest.raises(
        ConfigurationError, match=r"sample 17 has .*labels='causal' .*labels='every'"
    ):
        measured(sample, **options)
    assert measured(sample, **options, labels="causal")[1] == 2
    assert measured(sample, **options, labels="every")[1] == 3
    # Where the first is masked, it makes no difference.
    assert measured({**sample, "labels": [-100, 2, 3]}, **options)[1] == 2


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ({"pixel_values": torch.zeros(3, 4, 4), "labels": 3}, [1, 1]),
        ({"pixel_values": torch.zeros(3, 4, 4), "labels": [0.0, 1.0, 1.0]}, [3, 3]),
        ({"pixel_values": torch.zeros(3, 4, 4), "labels": {"boxes": 1}}, [1, 1]),
        ({"input_values": torch.zeros(3), "labels": [1, 2, 3]}, [3, 3]),  # of CTC
        ({"input_features": torch.zeros(8, 9), "labels": [1, 2, 3]}, [3, 3]),
        ((torch.zeros(3, 4, 4), 5), [1, 1]),
        (torch.zeros(4), [1, 1]),
        (7, [1, 1]),
    ],
)
def test_samples_without_tokens_count_by_their_labels(sample, expected):
    assert measured(sample, needs_lengths=False)[:2] == expected
    assert measured(sample, needs_lengths=False, labels="causal")[:2] == expected


def test_functions_of_the_user_replace_the_defaults():
    sample = {"text": "abcdef"}
    options = {
        "length_fn": lambda s: len(s["text"]),
        "supervised_fn": lambda s: torch.tensor(4),
        "patches_fn": lambda s: np.int32(9),
    }
    assert measured(sample, **options) == [6, 4, 0, 0, 0, 0]
    assert measured(sample, **options, count_patches=True) == [6, 4, 9, 1, 81, 0]
    sample = {"input_ids": [1, 2]}
    assert measured(sample, supervised_fn=lambda s: Supervised(1, FIRST))[1::4] == [1, FIRST]


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
    assert columns[2:5] == [patches, images, pairs]


def test_a_function_may_count_the_patches_of_each_image():
    for each in ([4, 6], (4, 6), np.array([4, 6])):
        counts = measured([1, 2], patches_fn=lambda sample, each=each: each, count_patches=True)
        assert counts[2:5] == [10, 2, 52]
    grid = {"input_ids": [1], "image_grid_thw": [[1, 1, 1]] * 2}
    # All of a sample are shared out over the images that it has.
    assert measured(grid, patches_fn=lambda s: 10, count_patches=True)[2:5] == [10, 2, 50]
    with pytest.raises(SampleError, match=r"patches_fn .* returned -1; it must return an integer"):
        measured([1], patches_fn=lambda s: [3, -1], count_patches=True)
