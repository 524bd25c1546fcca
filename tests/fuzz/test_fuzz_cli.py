"""The command line: whatever its options are given, it ends with exit code 0, or with 2 and a line
that says what to change; never with a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("pyarrow")

import pyarrow
import typer
from hypothesis import strategies as st
from mutations import fuzz
from pyarrow import parquet

from evenstep.cli.app import build, run

pytestmark = pytest.mark.usefixtures("files")

JOB = """
import evenstep.service as es
sources = [es.Source("web", "{folder}/chat.jsonl")]
job = es.Job(sources=sources, mesh={{"DP": 1}}, strategy=print,
             draws=es.DrawOptions(samples_per_step=1))
dataset = [{{"input_ids": [1, 2, 3]}}] * 5
"""


@pytest.fixture(scope="module")
def files() -> Iterator[Path]:
    """A folder of files to name, which is the current one."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "lengths.npy", np.arange(1, 41))
        np.save(folder / "long.npy", np.full(40, 2**31 - 1))
        np.save(folder / "wrong.npy", np.array([[1.5, -1]]))
        (folder / "[b]x[").mkdir()  # as markup of rich, a tag that is closed and was not open
        np.save(folder / "[b]x[/i].npy", np.arange(1, 41))
        parquet.write_table(
            pyarrow.table({"length": [1, 2, 3], "text": ["a", "b", None]}), folder / "a.parquet"
        )
        (folder / "chat.jsonl").write_text('{"input_ids": [1, 2]}\n{"input_ids": [3]}\n')
        (folder / "cut.jsonl").write_bytes(b'{"input_ids": [1, 2]}\n{"inp\xff')
        (folder / "cut.npy").write_bytes((folder / "lengths.npy").read_bytes()[:99])
        (folder / "cut.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-9])
        (folder / "empty").touch()
        (folder / "job_to_fuzz.py").write_text(JOB.format(folder=folder))
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


# Without them a command would say no more than what is missing.
BASES = {
    "advise": ["--world-size", "2", "--sketch", "30"],
    "index": ["a.parquet"],
    "profile": ["--seconds", "nan"],
    "report": ["chat.jsonl"],
    "service run": ["job_to_fuzz.py", "--resume", "cut.npy"],
    "simulate workload-packing": ["--lengths", "lengths.npy", "--context", "64"],
    "simulate context-parallel": [
        *("--lengths", "lengths.npy", "--context", "64", "--cp", "2", "--sequences", "2")
    ],
}
SIMULATE = ["--lengths", "lengths.npy", "--world-size", "2", "--max-tokens", "64"]
# They connect to Ray, run a job, measure, or go on until Ctrl-C.
LEFT_OUT = ("doctor", "service status", "service plan", "demo")
FIXED = {"--seconds", "--startup", "--address", "--resume"}

NUMBERS = ["0", "1", "2", "3", "7", "-1", "65", str(2**31), str(2**63), str(10**30), "9" * 5000]
NAMES = [
    *("", " ", "auto", "é", "\udcff", "²", "nan", "inf", "1e400", "1_0", "0x1", "[/b]", "-", "--"),
    *(".", "/", "empty", "none.npy", "lengths.npy", "long.npy", "wrong.npy", "[b]x[/i].npy"),
    *("cut.npy", "a.parquet", "a.parquet:length", "a.parquet:text", "a.parquet:", "cut.parquet"),
    *("chat.jsonl", "chat.jsonl:input_ids", "cut.jsonl", "x" * 300, "lengths.npy/x", "/dev/full"),
    *("ultrachat", "pad", "stop", "tokens", "model:", "model:./none", ":"),
    *("calibration:", "calibration:none", "calibration:empty", "calibration:.", "8,8", "8,-1"),
    *("per-document", "job_to_fuzz.py:dataset", "job_to_fuzz.py:", "a:b", "true", "{max_tokens}"),
]


TEXT = st.text(st.characters(exclude_characters="\0"), max_size=8)


def commands() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(build()).commands.items():
        inner = getattr(command, "commands", {})
        found.update({f"{name} {each}": inner[each] for each in inner} or {name: command})
    return {name: command for name, command in found.items() if not name.startswith(LEFT_OUT)}


COMMANDS = commands()


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command line: options of the command, each with any value."""
    name = draw(st.sampled_from([*COMMANDS] * 3).filter(lambda name: name != "advise"))
    if draw(st.integers(0, 19)) == 0:
        name = "advise"  # the slowest
    default = SIMULATE if name.startswith("simulate") else []
    words = [*name.split(), *BASES.get(name, [*default])]
    if name == "advise":
        words.append(draw(st.sampled_from(["lengths.npy", "chat.jsonl", "job_to_fuzz.py:dataset"])))
    options = [p for p in COMMANDS[name].params if p.param_type_name == "option"]
    usable = [p for p in options if not FIXED & {*p.opts} and p.name != "help"]
    for option in draw(st.lists(st.sampled_from(usable), min_size=1, max_size=2)):
        words.append(draw(st.sampled_from([*option.opts, *option.secondary_opts])))
        if not option.is_flag:
            pools = [NUMBERS, NUMBERS, NAMES]
            words.append(draw(st.one_of(*map(st.sampled_from, pools), TEXT)))
    if draw(st.booleans()):
        words.append("--json")
    if draw(st.integers(0, 9)) == 0:
        words += draw(st.lists(st.sampled_from(NAMES), max_size=2))
    return words


@fuzz(25, lines())
def test_any_options_end_with_a_result_or_one_clear_line(words: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    said = err.getvalue()
    assert code in (0, 2), said
    assert "Traceback" not in said
    if code == 0 and "--json" in words and out.getvalue().startswith("{"):
        json.loads(out.getvalue(), parse_constant=lambda constant: pytest.fail(constant))
    if code == 2:
        last = said.strip().splitlines()[-1]
        assert last.startswith(("evenstep: ", "Error: ")), said
        assert len(last) < 8000
