"""One run of the user's command, seen from the process that searches."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from evenstep.errors import ConfigurationError, EvenstepError

_GUARD = Path(__file__).with_name("guard.py")
_PATIENCE = 60.0  # plus the grace: more than a guard ever takes to stop


class TrialRun:
    """A context manager: all processes of the command have ended when it exits, for any reason.

    `evenstep.tools.tune.guard` ensures this, even if this process is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: Path,
        scratch: Path,
        grace: float,
    ) -> None:
        """Starts the command.

        Args:
            command: program and arguments.
            environment: all environment variables.
            output: file for its output.
            scratch: folder that is removed if this process is killed.
            grace: seconds between asking the command to end and killing it.
        """
        if sys.platform != "linux":
            raise ConfigurationError(
                f"running a command needs Linux, and this is {sys.platform}: elsewhere its "
                "processes could not be ended reliably; use evenstep.tools.tune.search"
            )
        arguments = {
            "command": list(command),
            "output": str(output),
            "scratch": str(scratch),
            "grace": grace,
        }
        # Isolated (-I), so that no file in the user's folder shadows a standard module. In a new
        # session, so that Ctrl-C reaches only this process, which decides what to do.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._patience = _PATIENCE + grace
        self._report: dict[str, object] | None = None

    def __enter__(self) -> TrialRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish()

    @property
    def ended(self) -> bool:
        """Whether the command has ended by itself, and all its processes with it."""
        return self._guard.poll() is not None

    def stop(self) -> int | None:
        """Ends the command and all its processes.

        Returns:
            Its exit code if it had ended by itself, negative if a signal killed it; else None.

        Raises:
            ConfigurationError: the command could not be started.
            EvenstepError: one of its processes cannot be ended.
        """
        report = self._finish()
        if "error" in report:
            raise ConfigurationError(f"the command could not be started: {report['error']}")
        if report["left"]:
            raise EvenstepError(
                f"processes {report['left']} of the command cannot be ended, so nothing further "
                "can be measured on this machine; see `ps -o pid,stat,wchan,cmd`"
            )
        code = report["returncode"]
        assert code is None or isinstance(code, int)
        return code

    def _finish(self) -> dict[str, object]:
        if self._report is not None:
            return self._report
        try:
            report, _ = self._guard.communicate(b"s", timeout=self._patience)
        except subprocess.TimeoutExpired:
            report = b""
        if not report:
            raise EvenstepError(
                f"process {self._guard.pid}, which watches the command, has died; processes of the "
                "command may still be running"
            )
        self._report = dict(json.loads(report))
        return self._report
