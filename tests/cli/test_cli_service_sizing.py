"""``evenstep service advise``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")

import command_line
from command_line import Capture

from evenstep.cli.service_sizing import loaders_of
from evenstep.cli.user_objects import load_job, load_object
from evenstep.errors import ConfigurationError

JOB = """
import json, pathlib
import evenstep.service as es

path = pathlib.Path(__file__).with_name("rows.jsonl")


def sized(row):
    return {"input_ids": list(range(row["length"]))}


def strategy(graph, mesh, step):
    return graph.mix().distribute("DP").balance("greedy").plan()


job = es.Job(
    sources=[es.Source(name, str(path), transform=sized) for name in ("a", "b")],
    mesh=es.Mesh(DP=1), strategy=strategy, draws=es.DrawOptions(samples_per_step=8), max_tokens=256,
)
"""


def evenstep(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    return command_line.run(capsys, "service", *arguments)


def test_a_job_is_measured_and_sized(tmp_path: Path, capsys: Capture, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    job, data = tmp_path / "sized_job.py", tmp_path / "rows.jsonl"
    job.write_text(JOB)
    data.write_text("".join(json.dumps({"length": 2 + k % 20}) + "\n" for k in range(60)))
    layout = tmp_path / "layout.json"
    options = ["--samples", "4", "--memory", "1000", "--step-seconds"]
    code, out, err = evenstep(capsys, "advise", str(job), *options, "0.5", "--layout", str(layout))
    assert code == 0, err
    advised = json.loads(out)
    costs = advised.pop("costs")
    assert {name: each["samples"] for name, each in costs.items()} == {"a": 4, "b": 4}
    assert len(advised["loaders"]) == 1
    assert advised["shortages"] == []
    assert loaders_of(str(layout)).as_dict() == advised

    code, out, err = evenstep(capsys, "advise", str(job), *options, "0.00001")
    assert code == 0, err
    assert json.loads(out)["shortages"]
    assert "would starve: needs" in err


def test_loaders_are_a_number_auto_or_a_file(tmp_path: Path) -> None:
    assert (loaders_of("4"), loaders_of("auto")) == (4, "auto")
    (tmp_path / "x.json").write_text("{}")
    for given, said in (
        (str(tmp_path / "x.json"), "no layout of"),
        ("many", "give a number, auto"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            loaders_of(given)


# Names of objects on the command line


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
