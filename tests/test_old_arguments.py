"""Arguments under old names, which work until 0.2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

import evenstep
import evenstep.service as es
from documents import Documents


def count(sample: Any) -> int:
    return len(sample["input_ids"])


def loader_with(**old: Any) -> Any:
    policy = evenstep.TokenBudget(256)
    loader = evenstep.DataLoader(Documents(10), policy=policy, length_fn=count, **old)
    assert loader.measure.length_fn is count
    counts = SimpleNamespace(
        supervised=loader.measure.supervised_fn, patches=loader.measure.patches_fn
    )
    return SimpleNamespace(memory=loader.memory, faults=loader.faults, length_fn=counts)


def job_with(**old: Any) -> es.Job:
    draws = {} if old.keys() & {"samples_per_step", "tokens_per_step"} else {"max_tokens": 128}
    return es.Job(
        sources=[es.Source("rows", [{"input_ids": [1]}])],
        mesh={"DP": 2},
        strategy=count,  # type: ignore[arg-type]
        **draws,
        **old,
    )


def start_with(**old: Any) -> SimpleNamespace:
    return SimpleNamespace(**es.start(job_with(), **old))  # type: ignore[dict-item]


# By function and new place, values by their old names.
MOVED: dict[Any, dict[str, dict[str, Any]]] = {
    loader_with: {
        "memory=Memory": {"buffer_size": 7, "buffer_bytes": 9, "prefetch": 2, "chunk_size": 3},
        "faults=Faults": {
            "skip_bad_samples": 1,
            "warn_after": 5.0,
            "replay": False,
            "exhausted": "stop",
        },
        "length_fn=SampleCounts(supervised": {"supervised_fn": count},
        "length_fn=SampleCounts(patches": {"patches_fn": count},
    },
    job_with: {
        "draws=DrawOptions": {
            "samples_per_step": 6,
            "tokens_per_step": 60,
            "unit": "tokens",
            "stop": "all_exhausted",
            "schedule": {"rows": 2.0},
            "curriculum": None,
        },
        "measures=MeasureOptions": {
            "modalities": {"image": count},
            "counted": ("text",),
            "supervised": count,
            "loss_reduction": "sum",
        },
        "memory=MemoryOptions": {
            "prefetch": 3,
            "buffer_size": 7,
            "buffer_bytes": 9,
            "decoded_bytes": 8,
            "workers": 0,
            "plans_kept": 5,
        },
    },
    start_with: {
        "faults=FaultOptions": {
            "standbys": 1,
            "patience": 9.0,
            "hung_after": 8.0,
            "memory_limit": 7,
        },
        "ray=RayOptions": {
            "address": "local",
            "cpus": 0.5,
            "placement": {"planner": {}},
        },
        "ray=RayOptions(init": {"ray_options": {"num_cpus": 2}},
        "logs=LogOptions": {"events": "/tmp/events"},
        "logs=LogOptions(plans": {"plan_log": "/tmp/plans"},
        "logs=LogOptions(steps": {"step_log": "/tmp/steps"},
        "loaders=": {"scaling": 3},
    },
}


@pytest.fixture(autouse=True)
def options_of_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` starts nothing, and returns what it would give to a service on Ray."""
    made = "evenstep.service.backends.ray.service.RayService"
    monkeypatch.setattr(made, lambda job, **options: options)


@pytest.mark.parametrize(
    ("function", "place", "name", "value"),
    [
        (function, place, name, value)
        for function, places in MOVED.items()
        for place, values in places.items()
        for name, value in values.items()
    ],
)
def test_an_old_name_works_warns_once_and_names_the_new_place(
    function: Any, place: str, name: str, value: Any
) -> None:
    with pytest.warns(DeprecationWarning, match="evenstep 0.2") as warned:
        made = function(**{name: value})
    (warning,) = warned
    assert warning.filename == __file__
    place += "" if "(" in place or place.endswith("=") else f"({name}"
    assert f"will not take {name}= of " in str(warning.message)
    assert f"pass {place}" in str(warning.message)
    assert attrgetter(re.sub(r"=(\w+\()?", ".", place).rstrip("."))(made) == value


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (loader_with, "collate_threads"),
        (job_with, "warn_after"),
        (job_with, "world_size"),
        (start_with, "stripe"),
        (start_with, "transport"),
        (es.RayOptions, "transport"),
    ],
)
def test_an_old_name_without_effect_says_so(function: Any, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"take {name}= of .*: leave it out") as warned:
        function(**{name: 2})
    assert len(warned) == 1


def test_old_names_and_new_groups_go_together() -> None:
    given: Mapping[str, Any] = {"prefetch": 3, "workers": 0, "unit": "tokens"}
    with pytest.warns(DeprecationWarning, match="evenstep 0.2") as warned:
        job = job_with(memory=es.MemoryOptions(plans_kept=9), **given)
    assert len(warned) == 3
    assert job.memory == es.MemoryOptions(prefetch=3, plans_kept=9)
    assert job.draws.unit == "tokens"
