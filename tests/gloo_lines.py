"""What ranks print."""

from __future__ import annotations


def without_gloo(printed: str) -> str:
    """The lines that are not Gloo's, which prints some under torch 2.9."""
    lines = printed.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("[Gloo]"))
