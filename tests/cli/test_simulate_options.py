"""No option of `evenstep simulate` is ignored: what makes no difference to a policy is refused."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("typer")

from evenstep.cli import main, simulate, simulate_options
from evenstep.plan.policies.by_name import POLICIES

# What concerns every policy, or is refused by a message of its own.
OF_ALL = {"invocation", "policy", "lengths", "world_size", "samples", "seed", "json"}


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *arguments, "--lengths", "llava", "--samples", "20"])
    captured = capsys.readouterr()
    assert (stop.value.code, captured.out) == (2, ""), arguments
    return captured.err


@pytest.mark.parametrize(
    ("policy", "option", "users"),
    [
        (
            "even",
            "--batch-size=8",
            "pool-sort, fixed-batch, sorted, length-grouped",
        ),
        ("even", "--queues=2", "workload-packing"),
        ("even", "--steady", "workload-packing"),
        ("even-packed", "--target-tokens=9", "even"),
        ("token-budget", "--micro-batches=4", "workload-packing"),
        ("fixed-batch", "--max-tokens=100", "even, even-packed, token-budget, sequence-packing,"),
        ("max-tokens", "--exhausted=pad", "even, even-packed, token-budget,"),
        ("workload-packing", "--cost=tokens", "even, even-packed,"),
        ("workload-packing", "--buffer-size=1024", "even, even-packed,"),
    ],
)
def test_an_option_without_use_is_refused_by_name_though_it_is_the_default(
    capsys: pytest.CaptureFixture[str], policy: str, option: str, users: str
) -> None:
    error = refusal(capsys, policy, option, "--world-size=1")
    name = option.partition("=")[0]
    assert f"{policy} has no use for {name}, which is for {users}" in error
    assert "leave it out" in error


def test_steady_and_queues_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, "workload-packing", "--steady", "--queues=2")
    assert "--steady and --queues 2 exclude each other" in error


def test_every_option_says_which_policies_use_it() -> None:
    known = {option for used in simulate_options._USED.values() for option in used}
    assert known == {*inspect.signature(simulate.command).parameters} - OF_ALL


def test_every_policy_says_which_options_it_uses() -> None:
    assert simulate_options._USED.keys() > POLICIES.keys()
