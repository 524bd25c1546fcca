"""Damaged inputs: documents of JSON with a few values changed, bytes cut, flipped and moved.

A fuzz test takes a whole input and a function that must either use what is left of it or raise an
`EvenstepError`. `make test` runs few examples, always the same ones; `make soak` runs many, others
each time.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DEEP: list[Any] = []
for _ in range(50):
    DEEP = [DEEP]

WRONG = st.sampled_from(
    [
        *(None, True, False, "", "text", "1", "é\ud800", [], {}, [None], [[1]], {"": 0}, DEEP),
        *(-1, 0, 1, 2, 3, 60, 61, 2**31, 2**32, 2**53 - 1, 2**53, 2**62, 2**63, 2**64, 10**30),
        *(-(2**63), -0.5, 0.5, 1e308, float("nan"), float("inf")),
    ]
)

Path = tuple[Any, ...]


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Of every value at any depth but the outermost."""
    inner: Any = []
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, item in inner:
        yield (*path, key)
        yield from paths(item, (*path, key))


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one to three changes."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        found = list(paths(document))
        if not found:
            break
        *way, key = draw(st.sampled_from(found))
        place = at(document, tuple(way))
        value = place[key]
        kind = draw(st.sampled_from(["drop", "wrong", "near", "near", "near", "copy", "extra"]))
        if kind == "drop":
            del place[key]
        elif kind == "near":
            place[key] = copy.deepcopy(draw(_near(value)))
        elif kind == "copy":
            place[key] = copy.deepcopy(at(document, draw(st.sampled_from(found))))
        elif kind == "extra" and isinstance(place, dict):
            place[draw(st.sampled_from(["", "dp_rank_1", "dp_rank_00", "é", "step "]))] = value
        elif kind == "extra":
            place.insert(key, copy.deepcopy(value))
        else:
            place[key] = copy.deepcopy(draw(WRONG))
    return document


def _near(value: Any) -> st.SearchStrategy[Any]:
    """A value of the same type, which checks of types alone let through."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from([-value, value + 1, value - 1, 2 * value, value + 1000, 2**40, -1])
    if isinstance(value, float):
        return st.sampled_from([-value, value + 1, 1e300, float("nan"), float("-inf")])
    if isinstance(value, str):
        middle = len(value) // 2
        return st.sampled_from([value[:middle], value + "x", value[::-1], value.upper()])
    if isinstance(value, list) and value:
        return st.sampled_from([value[:-1], value[1:], value[::-1], [*value, value[0]], []])
    return WRONG


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes of which some are lost, changed, or twice there."""
    content = bytearray(whole)
    for _ in range(draw(st.sampled_from([1, 1, 2, 8]))):
        if not content:
            break
        begin = draw(st.integers(0, len(content) - 1))
        end = min(begin + draw(st.sampled_from([1, 1, 2, 4, 8, 512])), len(content))
        kind = draw(st.sampled_from(["flip", "flip", "fill", "drop", "twice", "cut"]))
        if kind == "flip":
            content[begin] ^= 1 << draw(st.integers(0, 7))
        elif kind == "fill":
            content[begin:end] = draw(st.sampled_from([b"\0", b"\xff", b"9", b"["])) * (end - begin)
        elif kind == "drop":
            del content[begin:end]
        elif kind == "twice":
            content[begin:begin] = content[begin:end]
        else:
            del content[begin:]
    return bytes(content)


def json_bytes(document: Any) -> bytes:
    return json.dumps(document).encode("utf-8", "surrogatepass")


def fuzz(examples: int, *strategies: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """Makes a test of a function that takes what the strategies draw: so many times, and two
    hundred times as often in soak runs."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(count: int) -> None:
            settings(
                max_examples=count,
                derandomize=count == examples,
                database=None,
                suppress_health_check=list(HealthCheck),
            )(given(*strategies)(check))()

        many = pytest.param(
            200 * examples, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]
        )
        return pytest.mark.parametrize("count", [pytest.param(examples, id="short"), many])(test)

    return decorate
