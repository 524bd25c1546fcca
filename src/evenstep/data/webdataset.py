"""WebDataset: a shard is a tar file, read in its own order through the webdataset library.

A tar file does not record how many samples it holds, so each is read through once when the source
is opened. The library's own rules group files into samples. Text, JSON, numbers and arrays are
decoded by their suffix; anything else stays bytes. So do pickles, which may contain a program that
the library's own decoder would run.
"""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from evenstep.data.reader import FileReader, fields_of
from evenstep.data.shard_order import ShardPart
from evenstep.data.source import Source
from evenstep.data.source_files import (
    SourceFile,
    in_threads,
    list_files,
    not_opened,
    optional_package,
)

_TEXT = ("txt", "text", "transcript", "json", "jsn")
_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_PACKED = ("ten", "tb", "npy", "npz", "mp", "msg", "cbor")
_DECODED = {*_TEXT, *_NUMBERS, *_PACKED}


class _Member(tarfile.TarInfo):
    """A member of an archive that must be whole: an end without its mark is an error."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Any:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise tarfile.ReadError(
                f"it is damaged or cut off at byte {archive.offset:,}: {error}, and not the mark "
                "that ends a tar file"
            ) from error


class WebDatasetReader(FileReader):
    """See the module docstring."""

    def __init__(self, source: Source, seed: int) -> None:
        super().__init__(source, seed)
        self._library = optional_package(source, "webdataset", "autodecode", "tariterators")
        self._decode = self._library.autodecode.Decoder([self._plain], post=[])
        self._files = list_files(source)
        self._file_of = np.arange(len(self._files))
        self._set_order(in_threads(self._count, self._files), shuffle_samples=False)

    def _shard(self, part: ShardPart) -> Iterator[Any]:
        begin = int(part.indices[0])
        index = begin
        try:
            with self._file(part.shard).open() as file:
                tars = self._library.tariterators
                members = tars.tar_file_iterator(file)
                named = ({**m, "__url__": self._file(part.shard).path} for m in members)
                for sample in itertools.islice(tars.group_by_keys(named), begin, None):
                    yield fields_of(self._decode(sample), self.source, "file with suffix")
                    index += 1
        except GeneratorExit:
            raise
        except Exception as error:  # of tar files, decoders and file systems
            # The library's own error has no message.
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            raise self._failed(cause, part.shard, index) from error

    def _plain(self, suffix: str, content: bytes) -> Any:
        """Decodes what cannot hold a program; None for anything else."""
        if suffix.rpartition(".")[2] not in _DECODED:
            return None
        return self._library.autodecode.basichandlers(suffix, content)

    def _count(self, file: SourceFile) -> int:
        """Samples of a tar file. Member names are seen, contents are not read."""
        tars = self._library.tariterators
        keys: list[str] = []

        def note(name: str) -> bool:
            key, _ = tars.base_plus_ext(name)
            if key is not None and (not keys or keys[-1] != key):
                keys.append(key)
            return False

        try:
            with file.open() as opened:
                # tarfile takes a damaged header, or none, for the end of the archive.
                with tarfile.open(fileobj=opened, tarinfo=_Member) as archive:
                    while archive.next() is not None:
                        archive.members.clear()  # type: ignore[attr-defined]
                opened.seek(0)
                for _ in tars.tar_file_iterator(opened, select_files=note):
                    pass
        except Exception as error:
            what = f"{file.path} cannot be read as a tar file"
            raise not_opened(self.source, what, error) from error
        return len(keys)
