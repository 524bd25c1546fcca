from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("typer")

from evenstep.cli import main
from evenstep.tools.tune import Candidate, Measurement

Capture = pytest.CaptureFixture[str]

# A training in the eyes of `evenstep tune`, without the seconds that importing torch takes: three
# samples a second at 10, ten at 20 and beyond, out of memory at 40.
TRAINING = """
import json, os, pathlib, sys
value, = map(int, sys.argv[1:])
assert os.environ["EVENSTEP_MAX_TOKENS"] == str(value)
log = pathlib.Path(os.environ["EVENSTEP_TUNE"], "a.steps").open("w", buffering=1)
print(json.dumps({"policy": f"P({value})", "world_size": 1}), file=log)
samples = 3 if value == 10 else 10
for i in range(30):
    line = {"time": i, "epoch": 0, "samples": samples, "tokens": 9, "padded_tokens": 10,
            "length_moments": [3, 18 * (i % 2), 0], "ends_update": True}
    print(json.dumps(line), file=log)
    if value == 40:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory")
"""

# Says that it runs, and then does not listen; nor does its child, in a session of its own.
STUBBORN = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = "import time; time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
part = pathlib.Path(sys.argv[1] + ".part")
part.write_text(str(child.pid))
part.rename(sys.argv[1])
time.sleep(600)
"""


def tune(capsys: Capture, *arguments: str, training: str = TRAINING) -> tuple[int, str, str]:
    command = ["--", sys.executable, "-c", training, "{max_tokens}"]
    with pytest.raises(SystemExit) as stop:
        main(["tune", "--warmup", "2", "--steps", "20", *arguments, *command])
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


def test_json_is_one_object_on_stdout(capsys: Capture) -> None:
    code, out, err = tune(capsys, "--grid", "30,10,20,40,80", "--json")
    assert code == 0, err
    result: dict[str, Any] = json.loads(out)
    assert (result["max_tokens"], result["fall_back"]) == (20, 10)
    assert result["ranking"] == [20, 30, 10]
    assert result["window"] == {"seconds": 60.0, "steps": 20, "warmup": 2}
    assert result["command"][-1] == "{max_tokens}"
    outcomes = [candidate["outcome"] for candidate in result["candidates"]]
    assert outcomes == ["ok", "ok", "ok", "out of memory", "skipped"]
    # Every candidate has every key, measured or not.
    keys = {f.name for c in (Candidate, Measurement) for f in c.__dataclass_fields__.values()}
    for candidate in result["candidates"]:
        assert candidate.keys() == keys - {"output", "measurement"}
    first = result["candidates"][0]
    assert (first["throughput"], first["steps"], first["samples"]) == (3.0, 20, 60)
    assert (first["padding"], first["standard_error"]) == (pytest.approx(0.1), pytest.approx(0))
    assert first["composition"] == pytest.approx(1, abs=0.5)
    assert "10: ok, 3 samples/s, composition " in err
    assert "40: out of memory (torch.OutOfMemoryError" in err


def test_the_table_marks_the_choice_and_says_what_is_not_shown(capsys: Capture) -> None:
    code, out, err = tune(capsys, "--grid", "10,20")
    assert code == 0, err
    assert "→ 20" in out
    assert "  10" in out
    assert "max_tokens = 20\nranking: 20, 10" in out
    assert "if it runs out of memory in a whole epoch: 10" in out
    assert "20 is the largest value of the grid" in out
    assert "whether 20 survives a whole epoch, and how well the model learns" in err


def test_the_grid_may_be_made_from_the_mean_length(capsys: Capture) -> None:
    _, out, err = tune(capsys, "--from-mean", "5", "--up-to", "16", "--json")
    assert "values: 12, 16\n" in err
    assert json.loads(out)["ranking"] == [12, 16]


def test_if_nothing_survives_each_is_listed_with_the_end_of_its_output(capsys: Capture) -> None:
    broken = (
        "import sys; print('about to', flush=True); raise RuntimeError('broken at ' + sys.argv[1])"
    )
    code, out, err = tune(capsys, "--grid", "10,20", training=broken)
    assert (code, out) == (2, "")
    for value in (10, 20):
        assert f"--- {value}, the end of its output:\nabout to\nTraceback" in err
        assert f"{value}: failed, exit code 1; RuntimeError: broken at {value}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the values: --grid"),
        (("--from-mean", "10"), "give the values: --grid"),
        (("--grid", "10,x"), "--grid has 'x'"),
        (("--grid", ","), "grid is empty"),
        (("--grid", "0"), "max_tokens=0"),
        (("--grid", "8", "--up-to", "9"), "leave out --from-mean and --up-to"),
        (("--from-mean", "9", "--up-to", "9"), "less than twice the mean length"),
        (("--grid", "8", "--steps", "0"), "steps=0"),
        (("--grid", "8", "--seconds", "-1"), "seconds=-1"),
        (("--grid", "8", "--warmup", "-1"), "warmup=-1"),
        (("--grid", "8", "--band", "2"), "band=2"),
        (("--grid", "8", "--patience", "0"), "patience=0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_run(
    capsys: Capture, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = tune(capsys, *arguments, "--json")
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_help_has_an_example_and_says_what_is_not_shown(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    out = capsys.readouterr().out
    assert "evenstep tune --grid 4096,8192,16384 -- torchrun" in out
    assert "A short run does not show whether" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_when_the_search_itself_is_ended(
    number: signal.Signals, tmp_path: Path
) -> None:
    running, scratch = tmp_path / "running", tmp_path / "scratch"
    scratch.mkdir()
    search = multiprocessing.get_context("fork").Process(target=_search, args=(running, scratch))
    search.start()
    try:
        _until(running.exists)
        started = psutil.Process(search.pid).children(recursive=True)
        started.append(psutil.Process(int(running.read_text())))
        assert len({process.pid for process in started}) >= 3  # the guard, the command, its child
        assert search.pid is not None
        os.kill(search.pid, number)
        search.join(60)
        expected = -9 if number == signal.SIGKILL else 128 + number
        assert search.exitcode == expected
        _until(lambda: not [process for process in started if _lives(process)])
        _until(lambda: not os.listdir(scratch))
    finally:
        search.kill()
        search.join()


def _search(running: Path, scratch: Path) -> None:
    os.environ["TMPDIR"] = str(scratch)
    import tempfile

    tempfile.tempdir = None
    command = [sys.executable, "-c", STUBBORN, str(running)]
    try:
        main(["tune", "--grid", "8", "--grace", "0.2", "--", *command])
    except SystemExit as stop:
        sys.stdout.flush()
        os._exit(stop.code if isinstance(stop.code, int) else 99)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
