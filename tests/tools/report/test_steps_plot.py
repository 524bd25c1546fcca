from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.tools.report import StepPanel, plot_steps


def _pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.round(imread(path)[:, :, :3] * 255).astype(int)


def _coloured(pixels: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(pixels - colour).max(axis=2) <= 2).sum())


IDLE = (0xD0, 0xD0, 0xD0)
RANKS = ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00))


def test_time_waited_is_grey_and_each_rank_has_its_colour(tmp_path: Path) -> None:
    def draw(name: str, seconds: list[list[float]]) -> np.ndarray:
        path = tmp_path / "new" / name
        plot_steps([StepPanel(title=name, seconds=np.array(seconds))], path, title="Steps")
        return _pixels(path)

    ragged = draw("ragged.png", [[1.0, 0.25], [0.25, 1.0]] * 4)
    even = draw("even.png", [[1.0, 1.0]] * 8)
    for colour in RANKS:
        assert _coloured(even, colour) > _coloured(ragged, colour) > 1000
    # What is left of the grey in the even picture is its patch in the legend.
    assert _coloured(ragged, IDLE) > 10 * _coloured(even, IDLE)


def test_panels_share_both_axes(tmp_path: Path) -> None:
    half = StepPanel(title="half", seconds=np.full((4, 2), 0.5))
    full = StepPanel(title="full", seconds=np.full((8, 2), 1.0))
    plot_steps([half, full], tmp_path / "both.png")
    pixels = _pixels(tmp_path / "both.png")
    top, bottom = np.array_split(pixels[: int(len(pixels) * 0.9)], 2)
    # Half as many steps of half the height, so a quarter of the ink.
    ratio = _coloured(bottom, RANKS[0]) / _coloured(top, RANKS[0])
    assert 3 < ratio < 5


@pytest.mark.parametrize("panels", [[], [StepPanel(title="none", seconds=np.empty((0, 2)))]])
def test_nothing_to_draw_is_refused(panels: list[StepPanel], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="seconds"):
        plot_steps(panels, tmp_path / "empty.png")
    assert not (tmp_path / "empty.png").exists()
