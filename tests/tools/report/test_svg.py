from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.tools.report.svg import Bar, bar_chart, lengths_chart

SPACE = "{http://www.w3.org/2000/svg}"


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=40),
    st.floats(0.25, 2**32),
)
def test_all_marks_lie_inside_the_picture(lengths: list[int], mark: float) -> None:
    chart = ElementTree.fromstring(lengths_chart(np.array(lengths), [("budget", mark)]))
    _, _, width, height = map(float, chart.attrib["viewBox"].split())
    for bar in chart.iter(f"{SPACE}rect"):
        begin, top = float(bar.attrib["x"]), float(bar.attrib["y"])
        assert begin >= 0
        assert begin + float(bar.attrib["width"]) <= width
        assert top >= 0
        assert top + float(bar.attrib["height"]) <= height
    for line in chart.iter(f"{SPACE}line"):
        assert 0 <= float(line.attrib["x1"]) <= width
    (curve,) = chart.iter(f"{SPACE}polyline")
    points = np.array([point.split(",") for point in curve.attrib["points"].split()], float)
    assert (np.diff(points[:, 0]) >= 0).all()
    assert (np.diff(points[:, 1]) <= 0).all()


def test_names_are_escaped_and_shown_under_the_pointer() -> None:
    bar = Bar(name="a<b", value=0.5, low=0.4, high=0.6, label="1 & 2")
    chart = ElementTree.fromstring(bar_chart([bar], title="<t>"))
    titles = [title.text for title in chart.iter(f"{SPACE}title")]
    assert titles == ["a<b: 50.0%, 40.0% to 60.0%"]
    assert chart.attrib["aria-label"] == "<t>"


def test_a_chart_without_bars_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs bars"):
        bar_chart([], title="t")
