"""Documents: JSON after a line with its checksum and the name that it was written under."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_FORMAT = "evenstep 1"


def encoded(name: str, value: Any) -> bytes:
    """
    Args:
        name: by which the document is read again.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return f"{_FORMAT} {name} {_digest(name, text)}\n".encode() + text


def decoded(name: str, content: bytes) -> Any:
    """The value that was written under a name; None if the content is anything else."""
    head, _, text = content.partition(b"\n")
    if head != f"{_FORMAT} {name} {_digest(name, text)}".encode():
        return None
    return json.loads(text)


def _digest(name: str, text: bytes) -> str:
    return hashlib.sha256(name.encode() + b"\n" + text).hexdigest()
