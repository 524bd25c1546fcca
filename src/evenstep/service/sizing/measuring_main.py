"""The process in which sources are measured, by ``python -m`` and a number FD.

Through the connection FD it receives what to measure, and answers for each source, in order. Each
source is measured in a fork, which begins without threads, files and memory of the others, and
answers by itself. What users' functions print goes to standard error.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from evenstep.data.reader_kinds import open_reader
from evenstep.data.source import Source
from evenstep.errors import EvenstepError
from evenstep.processes import end_with_parent
from evenstep.service.remote.role_host import sendable, unpickled_job
from evenstep.service.sizing.source_measuring import Measuring, held_bytes, measured, warm_up
from evenstep.service.source_loader.source_loader import SourceLoader

_FORK = multiprocessing.get_context("fork")
ROLE = SourceLoader
"""Imported, so that this process has the memory of a loader's."""


def main() -> None:
    answers = Connection(int(sys.argv[1]))
    os.dup2(2, 1)
    try:
        sent, paths = pickle.loads(answers.recv_bytes())
        sources, measuring = unpickled_job(sent, paths)
        for kind in {source.kind for source in sources} - {"dataset"}:
            import_module(f"evenstep.data.{kind}")
        _tell(answers, held_bytes())
        for source in sources:
            child = _FORK.Process(target=_measure, args=(answers, source, measuring))
            child.start()
            child.join()
            if child.exitcode:
                break  # the parent reads that this process ends
    except Exception as error:
        _tell(answers, error)
    os._exit(0)


def _measure(answers: Connection, source: Source, measuring: Measuring) -> None:
    end_with_parent()
    try:
        warm_up(source)
        before = held_bytes()
        with open_reader(source, seed=measuring.seed) as reader:
            reader.fingerprint  # noqa: B018  as a loader is asked for it
            _tell(answers, measured(reader, measuring, before))
    except BaseException as error:
        _tell(answers, error)
    os._exit(0)


def _tell(answers: Connection, value: Any) -> None:
    if isinstance(value, BaseException):
        value = value if isinstance(value, EvenstepError) else sendable(value)
    answers.send_bytes(pickle.dumps(value))


if __name__ == "__main__":
    main()
