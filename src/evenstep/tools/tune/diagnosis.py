"""Determines from its output why a training ended before its steps were measured.

If memory ran out, larger values of max_tokens are not worth trying; any other failure says nothing
about them.
"""

from __future__ import annotations

import re
import signal

from evenstep.tools.out_of_memory import DIED, RAISED

_TOO_LONG = re.compile(r" has ([\d,]+) tokens, over max_tokens=([\d,]+)")
_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?([\w.]*(?:Error|Exception)\b.*)", re.MULTILINE)
_CONSEQUENCES = ("ChildFailedError", "PeerError")
_SIGKILL = 9  # Windows has no name for it
_KILLED = (-_SIGKILL, 128 + _SIGKILL)  # the latter as shells report it


def too_small(text: str) -> tuple[int, int, str] | None:
    """(length, limit, message) of a sample that the loader refused for its length; None if none."""
    found = _TOO_LONG.search(text)
    if found is None:
        return None
    before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
    length, limit = (int(number.replace(",", "")) for number in found.groups())
    return length, limit, _short(before.rpartition("Error: ")[2]) + found[0]


def diagnose(output: str, returncode: int | None) -> tuple[str, str]:
    """Outcome and reason of a command that ended before all its steps were measured.

    Args:
        output: all that the command printed.
        returncode: negative if a signal killed it; None if it hung and was ended.
    """
    if returncode == 0:
        if survived := survived_running_out(output):
            return "out of memory", survived
        return "failed", "ended by itself"
    if (refused := too_small(output)) is not None:
        return "too small", refused[2]
    if returncode in _KILLED:
        return "out of memory", "killed by SIGKILL, as the system does when its memory runs out"
    if found := _last(DIED, output):
        return "out of memory", _line_of(output, found)
    reason = _error(output)
    if returncode is None:
        return "hung", reason
    code = f"exit code {returncode}"
    if returncode < 0:
        code = f"killed by {signal.Signals(-returncode).name}"
    return "failed", f"{code}; {reason}" if reason else code


def survived_running_out(output: str) -> str:
    """The line in which a command that continued reported that memory ran out; empty if none."""
    found = _last(RAISED, output)
    return f"continued, but printed: {_line_of(output, found)}" if found else ""


def tail(output: str, lines: int = 20) -> str:
    """The last lines."""
    return "\n".join(output.rstrip().splitlines()[-lines:])


def _error(output: str) -> str:
    """The first exception that is not a mere consequence of another rank's."""
    errors = [found[1] for found in _ERROR.finditer(output)]
    causes = [e for e in errors if not any(name in e for name in _CONSEQUENCES)]
    return _short(next(iter(causes or errors), ""))


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match: in a traceback, the exception itself follows the lines that led to it."""
    return max(pattern.finditer(text), key=lambda found: found.start(), default=None)


def _line_of(text: str, found: re.Match[str]) -> str:
    begin = text.rfind("\n", 0, found.start()) + 1
    return _short(text[begin:].partition("\n")[0])


def _short(line: str, width: int = 160) -> str:
    line = " ".join(line.split())
    return line if len(line) <= width else line[: width - 1] + "…"
