"""A loader holds so many bytes of prepared samples, and shares them among its sources."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from service_world import Rows, job_of

import evenstep.service as es
from evenstep.service.job.source_layout import loader_tasks
from evenstep.service.source_loader.preparer import sample_bytes

SIZE = 4000  # bytes of a sample


def arrays(row: Any) -> dict[str, Any]:
    return {"input_ids": np.full(SIZE // 8, row["id"])}


def filled(tmp_path: Path, **options: Any) -> tuple[es.SourceLoader, dict[str, int]]:
    """A loader that has staged four steps and then filled its buffers, and what was drawn."""
    weights = {"common": 0.75, "rare": 0.25}
    rows = [{"id": number} for number in range(400)]
    sources = [
        es.Source(name, Rows(rows), transform=arrays, weight=weight)
        for name, weight in weights.items()
    ]
    job = job_of(tmp_path, sources=sources, samples_per_step=16, max_tokens=1 << 20, **options)
    layout = es.SourceLayout.of(job.names, 1)
    with es.start(job, backend="local") as service:
        tasks = [loader_tasks(service.plan(step), layout)[0] for step in range(4)]
    loader = es.SourceLoader(job.for_loader(job.names))
    for task in tasks:
        for source, name in enumerate(job.names):
            positions = task.samples.position[task.samples.source == source]
            loader.ahead(name, int(positions[0]), len(positions))
        loader.stage(task)
    for buffer in loader._buffers.values():
        while buffer.has_room():
            buffer.fill_chunk()
    drawn = sum(task.samples.counts() for task in tasks)
    return loader, dict(zip(job.names, drawn.tolist()))


def test_buffers_hold_no_more_bytes_than_given_and_share_them_by_what_is_drawn(
    tmp_path: Path,
) -> None:
    budget = 50 * SIZE
    loader, drawn = filled(tmp_path, buffer_bytes=budget)
    status = loader.status()
    assert 0.9 * budget < sum(status["source_bytes"].values()) < budget
    held = status["sources"]
    for name, count in drawn.items():
        assert abs(held[name] - 50 * count / sum(drawn.values())) < 8
    assert status["staged_bytes"] == pytest.approx(64 * SIZE, rel=0.2)
    loader.close()


def test_a_step_of_every_source_is_held_and_no_more_samples_than_allowed(tmp_path: Path) -> None:
    loader, drawn = filled(tmp_path, buffer_bytes=1)
    for name, held in loader.status()["sources"].items():
        assert drawn[name] / 4 - 1 <= held <= drawn[name] / 4 + 2
    loader.close()
    loader, _ = filled(tmp_path, buffer_size=10)
    assert loader.status()["sources"] == {"common": 10, "rare": 10}
    loader.close()


def test_what_is_held_ahead_deepens_from_a_few_steps_to_the_limit(tmp_path: Path) -> None:
    rows = [{"id": number} for number in range(2000)]
    source = es.Source("only", Rows(rows), transform=arrays)
    job = job_of(tmp_path, sources=[source], buffer_size=22)
    loader = es.SourceLoader(job.for_loader(job.names))
    buffer = loader._buffers["only"]
    held = []
    for step in range(100):
        known = buffer.ahead(4 * step, 4).rows[:4]
        buffer.take(known[:, 0].tolist(), [tuple(lengths) for lengths in known[:, 3:].tolist()])
        while buffer.has_room():
            buffer.fill_chunk()
        held.append(buffer.held()[0])
    assert held == sorted(held)
    assert (held[0], held[40], held[-1]) == (16, 20, 22)
    loader.close()


endless: list[Any] = ["x"]
endless.append(endless)


@pytest.mark.parametrize(
    ("sample", "least", "most"),
    [
        ({"input_ids": np.zeros(1000, np.int64)}, 8000, 8600),
        ({"input_ids": list(range(1000, 2000))}, 30_000, 42_000),
        ({"text": "x" * 5000, "images": [np.zeros((10, 10, 3), np.uint8)] * 2}, 5600, 6500),
        (SimpleNamespace(pixel_values=np.zeros(500), ids=b"x" * 1000), 5000, 5700),
        ({"image": type("Image", (), {"width": 30, "height": 20, "data": None})()}, 2400, 3000),
        ({"a": torch.zeros(1000)}, 4000, 4500),
        (endless, 0, 10 * sys.getsizeof(endless) + 1000),
        ([], 0, 200),
        (7, 0, 100),
    ],
)
def test_the_memory_of_a_sample_is_known_about(sample: Any, least: int, most: int) -> None:
    assert least <= sample_bytes(sample) <= most
