"""docs/gpu.md from the stored results of all devices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
BEGIN = "## Measured\n"
_STEPS = ("text", "many-ranks", "long")
_ABOUT_STEPS = """\
A decoder of 0.48 billion parameters in bf16, forward and backward. Groups of all ranks are timed
one after the other on the one GPU; a step takes as long as its slowest group. What ranks send each
other is left out. Chat has up to 8,192 tokens, in groups of 16,384; longer texts up to 32,768, in
groups of as many.
"""
_STEPS_HEAD = (
    "| | ranks | padding | imbalance of tokens | as predicted | **of time** | real tokens/s/GPU |"
)


def write_page(page: Path) -> None:
    before = page.read_text().split(BEGIN)[0]
    page.write_text(f"{before}{BEGIN}\n{measured()}")


def measured() -> str:
    """The section of all stored results, in the order of their names."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    sections = ["\n".join(section(one)) for one in found if "parts" in one]
    return "\n\n".join(sections) + "\n" if sections else "Nothing yet.\n"


def section(found: Mapping[str, Any]) -> Iterator[str]:
    """Of one device."""
    parts = found["parts"]
    yield f"### {found['device']}, torch {found['torch']}\n"
    steps = [row for name in _STEPS for row in parts.get(name, {}).get("rows", [])]
    if steps:
        yield _ABOUT_STEPS
        yield from (_STEPS_HEAD, f"|{7 * '---|'}")
        yield from map(step_row, steps)
    loader = parts.get("loader", {}).get("rows", [])
    if loader:
        yield "\nFrom `evenstep.DataLoader` to the device, one rank with two workers:\n"
        yield from ("| | real tokens/s | waiting for data |", "|---|---|---|")
        for row in loader:
            waited = f"{row['waiting_for_data']:.1%}"
            yield f"| {row['batches']} | {row['tokens_per_second']:,.0f} | {waited} |"
    for row in parts.get("kernels", {}).get("rows", []):
        yield f"\nTests marked `gpu`: {row['tests']}."
    yield from failures(parts)


def step_row(row: Mapping[str, Any]) -> str:
    cudnn = ", attention by cuDNN" if row["cudnn"] else ""
    figures = (
        f"{row['ranks']}",
        f"{row['padding']:.1%}",
        *(f"{row[name]:.3f}" if row[name] else "-" for name in ("tokens_imbalance", "predicted")),
        f"**{row['measured']:.3f}**" if row["measured"] else "-",
        f"{row['tokens_per_second']:,.0f}",
    )
    return f"| {row['texts']}: {row['batches']}{cudnn} | {' | '.join(figures)} |"


def failures(parts: Mapping[str, Any]) -> Sequence[str]:
    return [f"\nPart `{n}`: {p['outcome']}." for n, p in parts.items() if p["outcome"] != "ok"]
