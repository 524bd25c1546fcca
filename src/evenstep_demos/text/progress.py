"""What the user sees while the demo runs: a bar per run on a terminal, lines anywhere else.

All of it goes to standard error; standard output is for the result.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from evenstep_demos.text.messages import RunProgress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_SECONDS_BETWEEN_LINES = 10.0


class Display:
    """A context manager, inside which `note` and `step` may be called.

    Args:
        stream: a text stream; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bars: Bars | None = _bars() if self._stream.isatty() else None
        self._tasks: dict[str, TaskID] = {}
        self._next_line = 0.0

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

    def step(self, progress: RunProgress) -> None:
        """Moves the bar of a run, or prints a line every few seconds and at the end."""
        detail = f"step {progress.step}, loss {progress.loss:.2f}"
        if self._bars is not None:
            if progress.run not in self._tasks:
                self._tasks[progress.run] = self._bars.add_task(
                    progress.run, total=progress.total, detail=detail
                )
            self._bars.update(
                self._tasks[progress.run], completed=progress.done, detail=detail, refresh=True
            )
        elif progress.done >= progress.total or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            self.note(f"{progress.run:>10}: {progress.done / progress.total:4.0%}, {detail}")


def _bars() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError as error:
        raise ImportError("the demo needs rich: pip install 'evenstep[demo]'") from error
    return Progress(
        TextColumn("{task.description:>10}"),
        BarColumn(bar_width=40),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=Console(stderr=True),
    )
