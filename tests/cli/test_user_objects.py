"""Names of objects on the command line: those that stand for nothing are refused."""

from __future__ import annotations

import pytest

from evenstep.cli.user_objects import load_job, load_object
from evenstep.errors import ConfigurationError


def test_an_object_is_found_in_its_module() -> None:
    import documents

    assert load_object("documents:Documents") is documents.Documents
    assert load_object("documents:Documents.__len__") is documents.Documents.__len__


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("no_such_module:make", "there is no module 'no_such_module'"),
        ("documents:nothing", "documents has no 'nothing'"),
        ("documents", "must be FILE.py:NAME or package.module:NAME"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_object(name)


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'documents:VOCABULARY' is a int; name an"):
        load_job("documents:VOCABULARY")
