"""Which column holds the samples, where the user did not say."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["default_column"]


def default_column(names: Sequence[str], *, text: bool) -> str | None:
    """``text`` if there is a tokenizer for it, else ``input_ids``, else the only column."""
    for name in (*(["text"] if text else []), "input_ids"):
        if name in names:
            return name
    return names[0] if len(names) == 1 else None
