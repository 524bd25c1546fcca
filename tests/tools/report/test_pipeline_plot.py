from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan.pipeline.schedule import PipelineSchedule
from evenstep.tools.report.pipeline_plot import PipelinePanel, plot_pipeline
from evenstep.tools.simulate.pipeline_run import PipelineRun, simulate_pipeline

IDLE = (0xD0, 0xD0, 0xD0)
FORWARD = (0x00, 0x72, 0xB2)
BACKWARD = (0xE6, 0x9F, 0x00)


def _run(forward: list[float], chunks: int = 1) -> PipelineRun:
    return simulate_pipeline(forward, PipelineSchedule(stages=2, chunks=chunks))


def _pixels(path: Path, *runs: PipelineRun) -> np.ndarray:
    from matplotlib.image import imread

    plot_pipeline([PipelinePanel(title="a run", run=run) for run in runs], path, title="Runs")
    return np.round(imread(path)[:, :, :3] * 255).astype(int)


def _coloured(pixels: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(pixels - colour).max(axis=2) <= 2).sum())


def test_areas_are_the_times_of_passes_and_of_waiting(tmp_path: Path) -> None:
    run = _run([1.0, 1.0, 1.0, 1.0])
    pixels = _pixels(tmp_path / "new" / "even.png", run)
    forward, backward, idle = (_coloured(pixels, c) for c in (FORWARD, BACKWARD, IDLE))
    # Labels and edges take some of the bars, the narrow ones' most.
    assert backward / forward == pytest.approx(2.0, rel=0.15)
    assert idle / (forward + backward + idle) == pytest.approx(run.bubble, rel=0.15)


def test_little_work_is_pale(tmp_path: Path) -> None:
    even = _pixels(tmp_path / "even.png", _run([2.0, 2.0, 2.0, 2.0]))
    one_large = _pixels(tmp_path / "large.png", _run([1.0, 1.0, 1.0, 5.0]))
    # The large one alone has the full colour: 5 of 8 parts, on a longer axis.
    assert 0.3 < _coloured(one_large, BACKWARD) / _coloured(even, BACKWARD) < 0.75


def test_panels_share_the_axis_of_time(tmp_path: Path) -> None:
    pixels = _pixels(tmp_path / "both.png", _run([1.0] * 4), _run([2.0] * 4))
    # Work of the first is half of the second's, so its bars are pale; its waiting is half as long.
    top, bottom = np.array_split(pixels[: int(len(pixels) * 0.85)], 2)
    assert _coloured(bottom, IDLE) / _coloured(top, IDLE) == pytest.approx(2.0, rel=0.25)


def test_chunks_are_drawn_and_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    assert _coloured(_pixels(tmp_path / "chunks.png", _run([1.0, 1.0], chunks=2)), BACKWARD) > 1000
    for panels in ([], [PipelinePanel(title="none", run=_run([0.0]))]):
        with pytest.raises(ConfigurationError, match="work"):
            plot_pipeline(panels, tmp_path / "empty.png")
    assert not (tmp_path / "empty.png").exists()
