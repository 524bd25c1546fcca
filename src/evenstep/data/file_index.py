"""Where the samples of a large file are, found once and kept: later starts, and other loaders of
this host, need not read the file for it.

An index is a small file in the folder that the environment variable EVENSTEP_INDEX names, or in
``~/.cache/evenstep``; for example 320 KB for a tar file of 40,000 samples. It is of one version of
one file, and has a checksum: one that is damaged, or that cannot be written, is made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.data.source_files import SourceFile
from evenstep.errors import ConfigurationError, without_queries
from evenstep.files import replacing

logger = logging.getLogger("evenstep")

FOLDER_VARIABLE = "EVENSTEP_INDEX"
_LEAST = 1 << 20  # bytes of a file; smaller ones are read as fast


def kept_index(
    file: SourceFile, layout: str, make: Callable[[], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """The index of a file: as kept, or made and kept.

    Args:
        layout: what the index says, such as "tar" or "blocks of 512 lines".
        make: reads the file for it.

    Raises:
        Exception: as `make` raises it.
    """
    if file.size < _LEAST:
        return make()
    known = json.dumps([layout, without_queries(file.path), dict(file.version)], sort_keys=True)
    path = _folder() / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.index"
    with suppress(OSError, ValueError, EOFError):
        kept = path.read_bytes()
        if zlib.crc32(kept[4:]) == int.from_bytes(kept[:4], "little"):
            return np.load(io.BytesIO(kept[4:]), allow_pickle=False)  # type: ignore[no-any-return]
    found = make()
    content = io.BytesIO()
    np.save(content, found, allow_pickle=False)
    body = content.getvalue()
    try:
        with replacing(path) as partial:
            partial.write_bytes(zlib.crc32(body).to_bytes(4, "little") + body)
    except ConfigurationError as error:
        logger.warning(
            "the index of %s is not kept, and is made again by every start: %s; set %s to a folder "
            "that can be written",
            *(without_queries(file.path), error, FOLDER_VARIABLE),
        )
    return found


def _folder() -> Path:
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    home = os.path.expanduser("~")  # "~" itself for a user without one
    return Path(home if os.path.isabs(home) else tempfile.gettempdir(), ".cache", "evenstep")
