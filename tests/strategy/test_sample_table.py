from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.mixture.sample_table import BufferedMetadata, SampleId, SampleTable

numbers = st.integers(0, 2**62)


@st.composite
def tables(draw: st.DrawFn, sources: tuple[str, ...] = ("code", "wéb", "a b")) -> SampleTable:
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 2), numbers, st.integers(-1, 2**31 - 1), numbers, numbers)
        )
    )
    columns = list(zip(*rows)) or [()] * 5
    return SampleTable(sources, *columns[:4], {"text": columns[4]})


@given(tables())
def test_a_table_comes_back_exactly(samples: SampleTable) -> None:
    by_json = SampleTable.from_dict(json.loads(json.dumps(samples.to_dict())))
    for back in (by_json, pickle.loads(pickle.dumps(samples))):
        assert back == samples
        assert back.sources == samples.sources
        assert back.source.dtype == back.shard.dtype == np.int32
        assert back.position.dtype == back.index.dtype == back.lengths["text"].dtype == np.int64


@given(tables(), st.data())
def test_slices_join_to_the_whole(samples: SampleTable, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(samples)))
    assert SampleTable.concatenate([samples[:cut], samples[cut:]]) == samples
    mask = np.arange(len(samples)) < cut
    assert samples[mask] == samples[:cut] == samples[list(range(cut))]
    assert len(samples[[]]) == 0
    empty = SampleTable.empty(samples.sources, list(samples.lengths))
    assert SampleTable.concatenate([empty, samples]) == samples


def test_a_modality_that_a_table_lacks_has_length_zero_and_sources_must_be_the_same() -> None:
    first = SampleTable(("a",), [0], [0], [0], [0], {"text": [5]})
    second = SampleTable(("a",), [0], [1], [0], [1], {"image": [7]})
    joined = SampleTable.concatenate([first, second])
    assert {name: column.tolist() for name, column in joined.lengths.items()} == {
        "text": [5, 0],
        "image": [0, 7],
    }
    with pytest.raises(ConfigurationError, match="count different sources"):
        SampleTable.concatenate([SampleTable.empty(("a",)), SampleTable.empty(("b",))])


def test_a_sample_is_known_by_source_shard_and_index() -> None:
    samples = SampleTable(("a", "b"), [1, 0], [9, 4], [2, 0], [7, 4], {"text": [1, 2]})
    assert samples.identity(0) == SampleId("b", 2, 7)
    assert str(samples.identity(1)) == "a[0][4]"
    assert samples.counts().tolist() == [1, 1]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([0], [0, 1], [0], [0], {"text": [1]}), r"position of shape \(2,\)"),
        (([0], [0], [0], [0], {"text": [1, 2]}), "lengths of 'text'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: tuple, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SampleTable(("a", "b"), *columns)


@given(st.permutations(range(12)), st.integers(0, 8), st.integers(0, 8))
def test_buffered_metadata_gives_the_next_samples_by_position(
    order: list[int], position: int, count: int
) -> None:
    places = np.array(order)
    buffered = SampleTable(
        ("a", "b"), places % 2, places // 2, places * 0, places, {"text": places}
    )
    ahead = BufferedMetadata(buffered).ahead(1, position, count)
    assert ahead.position.tolist() == list(range(position, min(position + count, 6)))
    assert (ahead.source == 1).all()
