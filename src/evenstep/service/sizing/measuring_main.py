"""The process in which sources are measured: ``python -m evenstep.service.sizing.measuring_main``.

Its standard input has what to measure, its standard output an answer for each source, in order.
Each source is measured in a fork, which begins without threads, files and memory of the others.
What users' functions print goes to standard error.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from evenstep.data.reader_kinds import open_reader
from evenstep.data.source import Source
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.processes import signal_that_killed
from evenstep.service.remote.role_host import sendable, unpickled_job
from evenstep.service.sizing.source_measuring import Measuring, held_bytes, measured, warm_up
from evenstep.service.source_loader.source_loader import SourceLoader

_FORK = multiprocessing.get_context("fork")
_PATIENCE = 120.0  # seconds for a source to be opened and to give its first samples
ROLE = SourceLoader
"""Imported, so that this process has the memory of a loader's."""


def main() -> None:
    asked = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sent, paths, known = pickle.load(asked)
    try:
        sources, measuring = unpickled_job(sent, paths)
        for kind in {source.kind for source in sources} - {"dataset"}:
            import_module(f"evenstep.data.{kind}")
        _answer(answers, held_bytes())
        for source in sources:
            _answer(answers, _in_fork(source, measuring, known.get(source.name)))
    except EvenstepError as error:
        _answer(answers, error)
    except Exception as error:
        _answer(answers, sendable(error))
    answers.close()
    os._exit(0)


def _answer(answers: Any, value: Any) -> None:
    pickle.dump(value, answers)
    answers.flush()


def _in_fork(source: Source, measuring: Measuring, known: Mapping[str, Any] | None) -> Any:
    """What `_measured` gives, or the error that it raises.

    Raises:
        ConfigurationError: it took too long, or the process died.
    """
    received, sent = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_answer_measured, args=(sent, source, measuring, known))
    child.start()
    sent.close()
    limit = _PATIENCE + 4 * measuring.seconds
    try:
        if not received.poll(limit):
            raise ConfigurationError(
                f"source {source.name!r} could not be measured within {limit:g} s: opening it, "
                "reading it or its transform hangs, or takes that long for one sample"
            )
        return received.recv()
    except EOFError:
        ended = signal_that_killed(child.pid or 0)
        raise ConfigurationError(
            f"the process that measured source {source.name!r} died{ended}; its reader or its "
            "transform ends the process, or takes more memory than there is"
        ) from None
    finally:
        child.kill()
        child.join()


def _answer_measured(sent: Connection, *asked: Any) -> None:
    try:
        answer: Any = _measured(*asked)
    except EvenstepError as error:
        answer = error
    except BaseException as error:
        answer = sendable(error)
    sent.send(answer)
    os._exit(0)


def _measured(source: Source, measuring: Measuring, known: Mapping[str, Any] | None) -> Any:
    """The fingerprint of a source and its profile; None instead of a profile if the fingerprint is
    the one that is known, or nothing is to be measured."""
    warm_up(source)
    before = held_bytes()
    with open_reader(source, seed=measuring.seed) as reader:
        fingerprint = json.loads(json.dumps(reader.fingerprint))
        if not measuring.samples or fingerprint == known:
            return fingerprint, None
        return fingerprint, measured(reader, measuring, before)


if __name__ == "__main__":
    main()
