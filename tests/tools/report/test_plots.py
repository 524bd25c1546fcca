"""The picture of steps, by the colours of its pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.tools.report import StepPanel, plot_steps

pytest.importorskip("matplotlib")

IDLE = (0xD0, 0xD0, 0xD0)
RANKS = ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00))


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.round(imread(path)[:, :, :3] * 255).astype(int)


def coloured(image: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(image - colour).max(axis=2) <= 2).sum())


def steps(path: Path, seconds: list[list[float]]) -> np.ndarray:
    plot_steps([StepPanel(title="one", seconds=np.array(seconds))], path, title="Steps")
    return pixels(path)


def test_time_waited_is_grey_and_each_rank_has_its_colour(tmp_path: Path) -> None:
    ragged = steps(tmp_path / "new" / "ragged.png", [[1.0, 0.25], [0.25, 1.0]] * 4)
    even = steps(tmp_path / "even.png", [[1.0, 1.0]] * 8)
    for colour in RANKS:
        assert coloured(even, colour) > coloured(ragged, colour) > 1000
    # What is left of the grey in the even picture is its patch in the legend.
    assert coloured(ragged, IDLE) > 10 * coloured(even, IDLE)


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    nothing, path = np.empty((0, 2)), tmp_path / "empty.png"
    for panels in ([], [StepPanel(title="none", seconds=nothing)]):
        with pytest.raises(ConfigurationError, match="seconds"):
            plot_steps(panels, path)
    assert not path.exists()
