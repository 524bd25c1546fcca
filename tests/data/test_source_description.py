"""What a `Source` is checked for, and what it does to samples."""

from __future__ import annotations

import functools
import pickle
import threading

import pytest
from source_checks import take

from evenstep.data import Source, open_reader
from evenstep.errors import ConfigurationError, SampleError

SAMPLES = [{"id": i, "input_ids": list(range(i + 1))} for i in range(20)]


def add(sample, amount=1):
    if sample["id"] == 13:
        raise ValueError("thirteen")
    return {**sample, "id": sample["id"] + amount}


def nothing(sample):
    return None


def image_and_text(sample):
    return {"text": len(sample["input_ids"]), "image": 256}


def test_a_transform_is_applied_to_every_sample_or_left_to_who_asks():
    source = Source("s", SAMPLES[:10], transform=functools.partial(add, amount=5), shuffle=False)
    with open_reader(source) as reader:
        assert [item.sample["id"] for item in take(reader, 10)] == list(range(5, 15))
        stored = take(reader, 10, transform=False)
    assert [item.sample for item in stored] == SAMPLES[:10]
    assert source.prepare(stored[3].sample, 0, 3)["id"] == 8


def test_a_transform_that_fails_names_itself_and_the_sample():
    with open_reader(Source("s", SAMPLES, transform=add, block=8, shuffle=False)) as reader:
        with pytest.raises(SampleError) as error:
            take(reader, 20)
        assert len(take(reader, 6, 14)) == 6
    assert "add raised ValueError for sample s[1][5]: thirteen" in str(error.value)
    with pytest.raises(SampleError, match=r"nothing gave None for sample s\[0\]\[0\]"):
        take(open_reader(Source("s", SAMPLES, transform=nothing, shuffle=False)), 1)


def test_what_cannot_travel_is_refused_where_it_is_built():
    held = threading.Lock()
    with pytest.raises(ConfigurationError) as error:
        Source("web", "a.jsonl", transform=functools.partial(add, amount=held))
    assert "test_source_description.add with" in str(error.value)
    assert "of source 'web' cannot be sent to other processes" in str(error.value)
    with pytest.raises(ConfigurationError, match=r"transform .*<lambda> of source 'web' can"):
        Source("web", "a.jsonl", transform=lambda sample: held)
    with pytest.raises(ConfigurationError, match=r"lengths .*<lambda> of source 'web' cannot"):
        Source("web", "a.jsonl", lengths=lambda sample: held)
    Source("web", "a.jsonl", transform=lambda sample: sample)
    with pytest.raises(ConfigurationError, match="transform=3 of source 'web' must be a function"):
        Source("web", "a.jsonl", transform=3)
    source = pickle.loads(pickle.dumps(Source("web", "a.jsonl", transform=add, weight=2)))
    assert (source.name, source.transform, source.weight) == ("web", add, 2)


def test_credentials_are_not_in_the_text_of_a_source():
    source = Source("web", "s3://corpus/a.jsonl", storage_options={"secret": "hidden"})
    assert "s3://corpus/a.jsonl" in repr(source)
    assert "hidden" not in repr(source)


def test_lengths_are_by_modality():
    assert Source("s", SAMPLES).measure(SAMPLES[4], 0, 4) == {"text": 5}
    source = Source("s", SAMPLES, lengths=image_and_text)
    assert source.measure(SAMPLES[4], 0, 4) == {"text": 5, "image": 256}
    with pytest.raises(SampleError, match=r"length of sample s\[2\]\[4\] cannot be determined"):
        Source("s", SAMPLES).measure({}, 2, 4)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("s3://bucket/code/*.parquet", "parquet"),
        ("a/b.JSONL", "jsonl"),
        ("a.ndjson", "jsonl"),
        (["x/1.tar", "x/2.tgz"], "webdataset"),
        (SAMPLES, "dataset"),
    ],
)
def test_formats_are_known_by_suffix(path, kind):
    assert Source("s", path).kind == kind


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": ""}, "name=''"),
        ({"weight": -1}, "weight=-1 of source 's'"),
        ({"weight": float("nan")}, "weight=nan"),
        ({"columns": "text"}, "columns='text'"),
        ({"format": "csv"}, "format='csv'.*parquet, jsonl"),
        ({"data": "folder"}, "cannot be determined from folder; pass format="),
        ({"data": ["a.tar", "b.parquet"]}, "cannot be determined from a.tar, b.parquet"),
        ({"data": 5}, "a int; give a path"),
        ({"block": 0}, "block=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        Source(**{"name": "s", "data": "a.jsonl", **arguments})


def test_a_url_without_its_package_or_protocol_says_so():
    pytest.importorskip("fsspec")
    with pytest.raises(ConfigurationError, match=r"nosuch://a.jsonl is not a URL"):
        open_reader(Source("s", "nosuch://a.jsonl"))
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"source 's' reads s3://b/a.jsonl.*s3fs"):
            open_reader(Source("s", "s3://b/a.jsonl"))


def test_a_bad_position_is_refused():
    with open_reader(Source("s", SAMPLES)) as reader:
        for bad in (-1, 1.5, True):
            with pytest.raises(ConfigurationError, match="position="):
                next(reader.read(bad))
