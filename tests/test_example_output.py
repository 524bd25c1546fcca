"""Each example is short, and does and prints what its first and last lines say."""

from __future__ import annotations

from pathlib import Path

import pytest

from example_output import EXAMPLES, check_printed, expected_lines, run_example

SHARED = {"photographs.py", "tiny_llama.py", "tiny_qwen.py", "uneven.py"}
"""Of other examples."""
CALLED = {"slime_schedule.py", "torchtitan_config.py"}
"""By a framework, whose output it is; tests of `rebalance` and torchtitan run them."""
ALL = {path.name for path in EXAMPLES.glob("*.py")} - SHARED - CALLED
OF_TRAINERS = ("accelerate_loop", "mixture", "transformers_trainer", "trl_dpo", "trl_grpo")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80


@pytest.mark.parametrize("example", sorted(ALL))
def test_an_example_ends_with_what_it_prints(example: str) -> None:
    assert expected_lines(example)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("example", ["broadcast.py", "context_parallel.py", "ddp.py", "resume.py"])
def test_a_loop_prints_what_it_says(example: str, tmp_path: Path) -> None:
    check_printed(example, run_example(example, tmp_path))


@pytest.mark.integrations
@pytest.mark.timeout(800)
@pytest.mark.parametrize("example", [*OF_TRAINERS, "vision_sft", "lightning_module"])
def test_a_trainer_prints_what_it_says(example: str, tmp_path: Path) -> None:
    check_printed(f"{example}.py", run_example(f"{example}.py", tmp_path))
