from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

import typer
from command_line import Capture, figures, run

from evenstep.cli.app import COMMANDS, GROUPS, build
from evenstep.cli.shared_options import parse_cost
from evenstep.tools.profile import load_calibration, timer
from evenstep.tools.simulate.yardsticks import COMPARED

# What DESIGN promises to print, at least.
KEYS = {
    "policy",
    "world_size",
    "samples",
    "steps",
    "padding",
    "imbalance",
    "imbalance_p95",
    "efficiency",
    "samples_per_step",
    "tokens_per_step",
    "composition",
    "samples_per_update",
    "tokens_per_update_cv",
    "emitted",
    "missing",
    "duplicates",
    "max_delay_steps",
    "plan_us_per_sample",
}


def simulate(capsys: Capture, *arguments: str) -> dict[str, Any]:
    return figures(capsys, "simulate", *arguments)


def test_token_budget_meets_the_published_samples_per_step_and_padding(capsys: Capture) -> None:
    # ODB, Table 13.
    result = simulate(
        capsys,
        *("token-budget", "--lengths", "sharegpt4o", "--world-size", "8"),
        *("--max-tokens", "12288", "--buffer-size", "1024"),
    )
    assert result["samples_per_step"] == pytest.approx(52.82, rel=0.05)
    assert result["padding"] == pytest.approx(0.009, abs=0.01)
    assert (result["missing"], result["duplicates"]) == (0, 0)
    assert result["emitted"] == 8 * 12_000


def test_json_is_one_object_with_all_promised_keys_and_nothing_else_on_stdout(
    capsys: Capture,
) -> None:
    code, out, err = run(
        capsys,
        *("simulate", "fixed-batch", "--lengths", "mm-mix", "--world-size", "2"),
        *("--samples", "100", "--batch-size", "4", "--accumulate", "4", "--json"),
    )
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result.keys() >= KEYS
    assert (result["policy"], result["world_size"], result["steps"]) == ("fixed-batch", 2, 25)
    assert (result["accumulate"], result["samples_per_update"]) == (4, pytest.approx(200 / 7))


@pytest.mark.parametrize("policy", COMPARED)
def test_every_policy_runs_and_loses_nothing(capsys: Capture, policy: str) -> None:
    arguments = ["--lengths", "llava", "--world-size", "3", "--samples", "120"]
    budget = ("--max-tokens", "4096") if "max_tokens" in COMPARED[policy].takes else ()
    figures = simulate(capsys, policy, *arguments, *budget)
    assert (figures["missing"], figures["samples"]) == (0, 360)
    assert 1 <= figures["imbalance"] < 2
    packed = policy in ("even-packed", "sequence-packing")
    assert (figures["padding"] == 0) == packed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("even-more",), "unknown policy 'even-more'; known are even, even-packed,"),
        (("--world-size", "0"), "world_size=0 must be at least 1"),
        (("--samples", "0"), "samples=0 must be at least 1"),
        (("--seed", "-1"), "seed=-1 must be at least 0"),
        (("--buffer-size", "many"), "buffer_size='many' must be \"auto\" or a number of samples"),
        (("--max-tokens", "100"), "over max_tokens=100"),
        (("--cost", "joules"), "unknown cost 'joules'"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(
    capsys: Capture, arguments: tuple[str, ...], message: str
) -> None:
    if arguments[0].startswith("--"):
        arguments = ("token-budget", *arguments)
    given = ("--lengths", "llava", "--world-size", "2", "--samples", "10")
    filled = [*arguments]
    for option, value in zip(given[::2], given[1::2]):
        if option not in arguments:
            filled += [option, value]
    code, out, err = run(capsys, "simulate", *filled, "--json")
    assert (code, out) == (2, "")
    assert err.startswith("evenstep: ")
    assert err.count("\n") == 1
    assert message in err


def commands() -> Iterator[tuple[str, Any]]:
    """Those without commands of their own, by all words of their names."""
    group: Any = typer.main.get_command(build())
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        yield from ((f"{name} {each}", inner[each]) for each in inner or ())
        if inner is None:
            yield name, command


def test_help_of_every_command_has_an_example_and_json() -> None:
    found = dict(commands())
    assert {name.split()[0] for name in found} >= {*COMMANDS, *GROUPS}
    for name, command in found.items():
        assert f"\n  evenstep {name}" in command.help, name
        # Commands that look at a service print nothing but JSON.
        assert "service" in name or any("--json" in each.opts for each in command.params), name


def test_without_typer_the_command_says_how_to_install_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    code, out, err = run(capsys, "--version")
    assert (code, out) == (2, "")
    assert "pip install '.[cli]' in a clone" in err


# A calibration as a cost


SMALL = ("--layers", "3", "--hidden-size", "64", "--heads", "4", "--ffn-size", "96")
QUICK = ("--device", "cpu", "--max-length", "256", "--seconds")


def test_a_calibration_is_written_and_is_a_cost_of_other_commands(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Much time and few repeats, so that a machine under load measures all lengths, too.
    monkeypatch.setattr(timer, "_REPEATS", (3, 3))
    path = tmp_path / "new" / "calibration.json"
    arguments = ("profile", *SMALL, "--kv-heads", "2", *QUICK, "60", "--out", str(path), "--json")
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    assert json.loads(out) == json.loads(path.read_text())
    assert f"--cost calibration:{path}" in err
    content = json.loads(out)
    assert (content["shape"]["layers"], content["shape"]["kv_heads"]) == (3, 2)
    assert (content["device"]["kind"], content["dtype"]) == ("cpu", "fp32")
    assert all(part > 0 for each in content["measurements"] for part in each["seconds"])

    cost = f"calibration:{path}"
    assert asdict(parse_cost(cost)) == asdict(load_calibration(path)) == content["coefficients"]
    capsys.readouterr()
    code, out, err = run(
        capsys,
        *("simulate", "even", "--lengths", "ultrachat", "--world-size", "2", "--samples", "100"),
        *("--cost", cost, "--json"),
    )
    assert code == 0, err
    assert json.loads(out)["cost"] == cost
