from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenstep.tools.report import text_table

CELLS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=12)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n))))
def test_every_line_keeps_its_cells_and_fits_the_rule_under_the_header(
    rows: list[list[str]],
) -> None:
    columns = len(rows[0]) if rows else 1
    lines = text_table(["head"] * columns, rows).split("\n")
    assert len(lines) == len(rows) + 2
    width = len(lines[1])
    for row, line in zip(rows, lines[2:]):
        assert len(line) <= width
        assert line == line.rstrip()
        assert all(cell.strip() in line for cell in row)


def test_numbers_are_flush_right_and_names_flush_left() -> None:
    table = text_table(["", "fixed"], [["padding", "40 %"], ["wait", "1 %"]], title="Two runs")
    assert table.split("\n") == [
        "Two runs",
        "",
        "          fixed",
        "───────   ─────",
        "padding    40 %",
        "wait        1 %",
    ]
