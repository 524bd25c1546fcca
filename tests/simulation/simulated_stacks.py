"""Where simulated threads are, for reports."""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType


def doing() -> str:
    """The call of the running thread, and where the loader made it."""
    frame = sys._getframe(2)
    called = frame.f_code.co_name
    while frame.f_back is not None and "simulated_" in frame.f_code.co_filename:
        called, frame = frame.f_code.co_name, frame.f_back
    return f"{called} in {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def lines_of(frame: FrameType | None) -> str:
    """The lines of the loader in a stack."""
    lines = traceback.extract_stack(frame) if frame is not None else []
    return "".join(
        f"   {os.path.basename(line.filename)}:{line.lineno} {line.name}: {line.line}\n"
        for line in lines
        if "/evenstep/" in line.filename
    )
