"""Why a training ended before its window did: told from an exception, or from what it printed.

Running out of memory has many names: torch's exception, CUDA libraries that could not allocate,
the operating system's SIGKILL, a launcher's report of it. All of them mean that a larger value is
no use, where any other failure says nothing about it.
"""

from __future__ import annotations

import re
import signal

import torch

from evenstep.errors import EvenstepError

__all__ = ["diagnose", "ran_out_of_memory", "survived_running_out", "tail", "too_small"]

_RAISED = re.compile(
    # Strict: what a script that goes on must have printed for its run not to count.
    r"OutOfMemoryError|(CUDA|HIP|XPU) out of memory|CUDA error: out of memory"
)
_DIED = re.compile(
    _RAISED.pattern + r"|^(\[rank\d+\]: ?)?MemoryError\b"
    r"|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory"
    r"|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
    # What torchrun says of a rank that was killed, and evenstep of a worker.
    r"|Signal 9 \(SIGKILL\)|exitcode\s*:\s*-9\b|was killed by SIGKILL",
    re.MULTILINE,
)
_TOO_LONG = re.compile(r" has ([\d,]+) tokens, over max_tokens=([\d,]+)")
_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?([\w.]*(?:Error|Exception)\b.*)", re.MULTILINE)
_CONSEQUENCES = ("ChildFailedError", "PeerError")
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the latter as shells put it


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of this process means that memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # Libraries' failures to allocate come as plain RuntimeErrors.
    return not isinstance(error, EvenstepError) and bool(_DIED.search(str(error)))


def too_small(text: str) -> tuple[int, int, str] | None:
    """(length, limit, message) of a sample that the loader refused for its length, if any."""
    found = _TOO_LONG.search(text)
    if found is None:
        return None
    before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
    length, limit = (int(number.replace(",", "")) for number in found.groups())
    return length, limit, _short(before.rpartition("Error: ")[2]) + found[0]


def diagnose(output: str, returncode: int | None) -> tuple[str, str]:
    """Outcome and reason of a command that did not fill its window.

    Args:
        output: all that it printed.
        returncode: negative where a signal killed it; None where it was ended because it hung.
    """
    if returncode == 0:
        if survived := survived_running_out(output):
            return "out of memory", survived
        return "failed", "ended by itself"
    if (refused := too_small(output)) is not None:
        return "too small", refused[2]
    if returncode in _KILLED:
        return "out of memory", "killed by SIGKILL, as the system does where its memory runs out"
    if found := _last(_DIED, output):
        return "out of memory", _line_of(output, found)
    reason = _error(output)
    if returncode is None:
        return "hung", reason
    code = f"exit code {returncode}"
    if returncode < 0:
        code = f"killed by {signal.Signals(-returncode).name}"
    return "failed", f"{code}; {reason}" if reason else code


def survived_running_out(output: str) -> str:
    """What a command that went on said about memory that ran out; empty if nothing."""
    found = _last(_RAISED, output)
    return f"went on after it, but printed: {_line_of(output, found)}" if found else ""


def tail(output: str, lines: int = 20) -> str:
    """The last lines."""
    return "\n".join(output.rstrip().splitlines()[-lines:])


def _error(output: str) -> str:
    """The exception that came first, of those that are no mere consequence of another rank's."""
    errors = [found[1] for found in _ERROR.finditer(output)]
    causes = [e for e in errors if not any(name in e for name in _CONSEQUENCES)]
    return _short(next(iter(causes or errors), ""))


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """A traceback shows the line that raises first, and what was raised last."""
    return max(pattern.finditer(text), key=lambda found: found.start(), default=None)


def _line_of(text: str, found: re.Match[str]) -> str:
    begin = text.rfind("\n", 0, found.start()) + 1
    return _short(text[begin:].partition("\n")[0])


def _short(line: str, width: int = 160) -> str:
    line = " ".join(line.split())
    return line if len(line) <= width else line[: width - 1] + "…"
