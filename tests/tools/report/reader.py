"""Reads pages as a browser would: elements, words, and no requests."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "hr"}


class Reader(HTMLParser):
    """Asserts that elements close in order and that the page requests nothing."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.heights: list[float] = []
        """Of the pieces of all charts."""
        self.rows: list[list[str]] = []
        """Cells of the rows of all tables."""
        assert "@import" not in page
        assert "url(" not in page
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        assert "src" not in given
        assert given.get("href", "data:,") == "data:,"
        if tag == "i" and "style" in given:
            (height,) = re.findall(r"height:([\d.]+)%", given["style"])
            self.heights.append(float(height) / 100)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words += data
        if "td" in self.open:
            self.rows[-1][-1] += data
