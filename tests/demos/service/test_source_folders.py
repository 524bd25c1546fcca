"""Files of a tree to sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep_demos.service.folders import group_by_folder

TREE = (
    [("big", "a")] * 5 + [("big", "b")] * 4 + [("big",)] * 2 + [("small",)] * 3 + [()] * 2
)  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (2, ["big", "small"]),
        (4, ["big/a", "big/b", "small", "big"]),
        (9, ["big/a", "big/b", "small", "big", "modules"]),
    ],
)
def test_the_largest_folder_is_split_until_there_are_enough(wanted: int, names: list[str]) -> None:
    assert list(group_by_folder(TREE, wanted)) == names


def test_folders_with_too_few_files_are_left_out() -> None:
    assert list(group_by_folder(TREE, 9, fewest=3)) == ["big/a", "big/b", "small"]


folders = st.lists(st.lists(st.sampled_from("abc"), max_size=4).map(tuple), max_size=60)


@given(folders, st.integers(1, 20))
def test_no_file_is_in_two_sources_and_each_lies_where_its_source_says(
    given_folders: list[tuple[str, ...]], wanted: int
) -> None:
    groups = group_by_folder(given_folders, wanted)
    assert len(groups) <= wanted
    files = [file for group in groups.values() for file in group]
    assert len(files) == len(set(files))
    for name, group in groups.items():
        inside = () if name == "modules" else tuple(name.split("/"))
        assert all(given_folders[file][: len(inside)] == inside for file in group)
    if wanted > len(set(given_folders)):
        assert len(files) == len(given_folders)
