from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.tools.report.packing_plot import PackingPanel, plot_packing

pytest.importorskip("matplotlib")

IDLE = (0xD0, 0xD0, 0xD0)
WORK = (0x00, 0x72, 0xB2)


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.round(imread(path)[:, :, :3] * 255).astype(int)


def coloured(image: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(image - colour).max(axis=2) <= 2).sum())


def draw(path: Path, costs: list[list[float]], **options: int) -> np.ndarray:
    plot_packing([PackingPanel(title="one", costs=np.array(costs))], path, **options)
    return pixels(path)


def test_what_is_below_the_heaviest_is_grey(tmp_path: Path) -> None:
    uneven = draw(tmp_path / "new" / "uneven.png", [[1.0, 0.0, 0.5, 0.5]] * 8)
    even = draw(tmp_path / "even.png", [[1.0] * 4] * 8)
    # Half of the cost is missing; what is left of the grey in the even one is in the legend.
    assert 0.9 < coloured(uneven, IDLE) / coloured(uneven, WORK) < 1.2
    assert coloured(even, IDLE) < 0.1 * coloured(uneven, IDLE)


def test_of_many_steps_those_in_the_middle_are_drawn(tmp_path: Path) -> None:
    costs = [[9.0, 0.0]] * 10 + [[1.0, 1.0]] * 4 + [[9.0, 0.0]] * 10
    few, all_of_them = (draw(tmp_path / f"{n}.png", costs, most=n) for n in (4, 24))
    assert coloured(few, IDLE) < 0.1 * coloured(all_of_them, IDLE)


@pytest.mark.parametrize("panels", [[], [PackingPanel(title="none", costs=np.empty((0, 2)))]])
def test_nothing_to_draw_is_refused(panels: list[PackingPanel], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs"):
        plot_packing(panels, tmp_path / "empty.png")
    assert not (tmp_path / "empty.png").exists()
