"""A job that cannot run is refused where it is built."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import re
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from service_world import job_of, sources, tokens_of_row

import evenstep.service as es
from evenstep.data import pickling
from evenstep.errors import ConfigurationError
from evenstep.service.start_options import StartOptions
from evenstep.strategy.mesh import ClientPlaceTree


def refused(tmp_path: Path, *words: str, **options: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        job_of(tmp_path, **options)
    for word in words:
        assert word in str(caught.value)


def test_a_mesh_may_be_a_tree_a_mapping_or_a_device_mesh(tmp_path: Path) -> None:
    class DeviceMesh:
        import torch

        mesh = torch.arange(4).reshape(2, 2)
        mesh_dim_names = ("dp_shard", "cp")

    expected = es.Mesh(DP=2, CP=2)
    for mesh in (expected, {"DP": 2, "CP": 2}, DeviceMesh()):
        assert job_of(tmp_path, mesh=mesh).tree == expected
    assert isinstance(expected, ClientPlaceTree)
    refused(tmp_path, "mesh is a list", mesh=[2, 2])


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    gone = es.Source("gone", str(tmp_path / "*.parquet"), transform=tokens_of_row)
    refused(tmp_path / "elsewhere", "source 'gone'", "there is no file", sources=[gone])


def test_sources_without_weight_or_a_name_of_their_own_are_refused(tmp_path: Path) -> None:
    given = sources(tmp_path)
    refused(tmp_path, "sum to 0", sources=[replace(source, weight=0.0) for source in given])
    refused(tmp_path, "sum to 0", schedule={"code": 0.0})
    refused(tmp_path, "'wab'", "which is not a source", schedule={"wab": 1.0})
    refused(tmp_path, "several sources are named 'code'", sources=[*given, given[0]])
    for none in ([], ["a.parquet"]):
        refused(tmp_path, "must be a list", sources=none)


def test_what_belongs_to_this_process_cannot_be_in_a_job(tmp_path: Path) -> None:
    lock = threading.Lock()

    def holding(graph: Any, mesh: Any, step: int) -> Any:
        with lock:
            return graph.mix().distribute("DP").plan()

    refused(tmp_path, "strategy=", "cannot be sent to other processes", "lock", strategy=holding)
    locked = es.Source("locked", [{"input_ids": lock}])
    refused(tmp_path, "source 'locked'", "cannot be sent", sources=[locked])


def test_without_cloudpickle_there_are_no_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickling, "cloudpickle", None)
    job_of(tmp_path)
    refused(tmp_path, "pip install '.[processes]' in a clone", "or choose workers=0", workers=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"micro_batches": 0}, "micro_batches=0"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"collate": "stack"}, "collate='stack' must be one of pack, pad"),
        ({"loss_reduction": "max"}, "loss_reduction='max'"),
        ({"strategy": None}, "strategy=None must be a function"),
        ({"modalities": {}}, "must be at least one"),
        ({"modalities": {"supervised": len}}, "none of them 'supervised'"),
        ({"modalities": {"text": 3}}, "modality 'text' is 3"),
        ({"counted": "audio"}, "names 'audio'"),
        ({"samples_per_step": None, "max_tokens": None}, "how much a step draws"),
        ({"stop": "later"}, "stop='later'"),
        ({"by": "rows"}, "by='rows'"),
        ({"sharding": "zigzag"}, "methods="),
        ({"mesh": {"CP": 2}, "collate": "pad"}, "padded rows are not cut"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    refused(tmp_path, words, **options)


def test_the_fingerprint_follows_what_changes_plans(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    assert job.fingerprint == job_of(tmp_path).fingerprint
    assert pickle.loads(pickle.dumps(job)).fingerprint == job.fingerprint
    others = [{"seed": 4}, {"micro_batches": 3}, {"mesh": es.Mesh(DP=4)}, {"by": "tokens"}]
    found = {job_of(tmp_path, **other).fingerprint for other in others} | {job.fingerprint}
    assert len(found) == len(others) + 1


def test_start_refuses_what_is_no_job_and_unknown_backends(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be given an evenstep"):
        es.start({"sources": []}, backend="local")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match="backend='slurm' must be one of ray, processes, local"
    ):
        es.start(job_of(tmp_path), backend="slurm")


def test_help_explains_each_field_of_a_job_and_each_option_of_a_backend() -> None:
    from evenstep.service.backends.ray.ray_service import RayService

    explained = pydoc.render_doc(es.start, renderer=pydoc.plaintext)
    for backend in (es.LocalService, RayService):
        options = set(inspect.signature(backend).parameters) - {"job", "given"}
        options |= {each.name for each in fields(StartOptions)}
        assert not [name for name in options if not re.search(rf"\n +{name}: ", explained)]
    explained = pydoc.render_doc(es.Job, renderer=pydoc.plaintext).split("Method resolution")[0]
    names = [each.name for each in fields(es.Job)]
    assert not [n for n in names if not re.search(rf"\n \|  +(\w+, )*{n}(, \w+)*: ", explained)]
