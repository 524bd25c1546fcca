"""`LocalCopy`: parts of a file that lies elsewhere, fetched once and read as often as need be."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import suppress

from evenstep.data.source_files import SourceFile

_PIECE = 8 << 20  # bytes that are in memory while they are copied


class LocalCopy:
    """A file without a name that has these parts where the original has them, and nothing between,
    where it takes no room. It ends with this object."""

    def __init__(self, original: SourceFile, parts: Iterable[tuple[int, int]]) -> None:
        """
        Args:
            parts: first byte of each, and the one after its last.
        """
        self.file = tempfile.TemporaryFile(prefix="evenstep-")  # noqa: SIM115  see __del__
        self.file.truncate(original.size)
        with original.open() as opened:
            for begin, end in parts:
                opened.seek(begin)
                self.file.seek(begin)
                while piece := opened.read(min(_PIECE, end - self.file.tell())):
                    self.file.write(piece)
        self.file.flush()

    def __del__(self) -> None:
        with suppress(AttributeError):  # where there is no room for temporary files
            self.file.close()
