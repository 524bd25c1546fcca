"""The process in which sources are measured, by ``python -m`` and a number FD.

Through the connection FD it receives what to measure, and answers for each source, in order. Each
source is measured in a fork, which begins without threads, files and memory of the others, and
answers by itself. What users' functions print goes to standard error.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from importlib import import_module
from multiprocessing.connection import Connection

from evenstep.data.reader_kinds import open_reader
from evenstep.data.source import Source
from evenstep.processes import end_with_parent
from evenstep.service.remote.child_process import connection_to_parent, tell
from evenstep.service.remote.role_host import unpickled_job
from evenstep.service.sizing.source_measuring import Measuring, held_bytes, measured, warm_up
from evenstep.service.source_loader.source_loader import SourceLoader

_FORK = multiprocessing.get_context("fork")
ROLE = SourceLoader
"""Imported, so that this process has the memory of a loader's."""


def main() -> None:
    answers = connection_to_parent()
    try:
        sent, paths = pickle.loads(answers.recv_bytes())
        sources, measuring = unpickled_job(sent, paths)
        for kind in {source.kind for source in sources} - {"dataset"}:
            import_module(f"evenstep.data.{kind}")
        tell(answers, held_bytes())
        for source in sources:
            child = _FORK.Process(target=_measure, args=(answers, source, measuring))
            child.start()
            child.join()
            if child.exitcode:
                break  # the parent reads that this process ends
    except Exception as error:
        tell(answers, error)
    os._exit(0)


def _measure(answers: Connection, source: Source, measuring: Measuring) -> None:
    end_with_parent()
    try:
        warm_up(source)
        before = held_bytes()
        with open_reader(source, seed=measuring.seed) as reader:
            reader.fingerprint  # noqa: B018  as a loader is asked for it
            tell(answers, measured(reader, measuring, before))
    except BaseException as error:
        tell(answers, error)
    os._exit(0)


if __name__ == "__main__":
    main()
