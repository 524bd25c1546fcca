"""WebDataset: a shard is a tar file, whose samples come in its own order.

A tar file does not record where its samples are, so its headers are read through once when the
source is opened. After that a sample is read by itself, from wherever it lies; of a compressed
file, all that is before it is read, too. The library's own rules group files into samples. Text,
JSON, numbers and arrays are decoded by their suffix; anything else stays bytes. So do pickles,
which may contain a program that the library's own decoder would run.
"""

from __future__ import annotations

import io
import itertools
import re
import tarfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.file_index import kept_indices
from evenstep.data.reader import FileReader, fields_of
from evenstep.data.shard_order import ShardPart
from evenstep.data.source import Source
from evenstep.data.source_files import (
    SourceFile,
    list_files,
    not_opened,
    optional_package,
)

_TEXT = ("txt", "text", "transcript", "json", "jsn")
_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_PACKED = ("ten", "tb", "npy", "npz", "mp", "msg", "cbor")
_META = re.compile(r"__[^/]*__($|/)")
_END = bytes(1024)
"""Two empty blocks end a tar file."""
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
        entries = kept_indices(self._files, "tar", self._indexed)
        self._begins = [np.frombuffer(entry, np.int64) for entry in entries]
        self.random_access = not any(map(_is_compressed, self._files))
        self._set_order([len(each) - 1 for each in self._begins], shuffle_samples=False)

    def _shard(self, part: ShardPart) -> Iterator[Any]:
        file, indices = self._file(part.shard), part.indices.tolist()
        index = indices[0]
        try:
            with file.open() as opened:
                samples: Iterator[Any]
                if _is_compressed(file):
                    samples = itertools.islice(self._samples(opened, file), index, None)
                else:
                    begins = self._begins[part.shard]
                    samples = (self._at(opened, file, *begins[i : i + 2]) for i in indices)
                for sample in samples:
                    yield fields_of(self._decode(sample), self.source, "file with suffix")
                    index += 1
        except GeneratorExit:
            raise
        except Exception as error:  # of tar files, decoders and file systems
            # The library's own error has no message.
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            raise self._failed(cause, part.shard, index) from error

    def _at(self, opened: IO[bytes], file: SourceFile, begin: int, end: int) -> Any:
        """The sample whose files lie between two bytes of a tar file."""
        opened.seek(begin)
        (sample,) = self._samples(io.BytesIO(opened.read(end - begin) + _END), file)
        return sample

    def _samples(self, opened: IO[bytes], file: SourceFile) -> Iterator[Any]:
        tars = self._library.tariterators
        named = ({**m, "__url__": file.path} for m in tars.tar_file_iterator(opened))
        return iter(tars.group_by_keys(named))

    def _plain(self, suffix: str, content: bytes) -> Any:
        """Decodes what cannot hold a program; None for anything else."""
        if suffix.rpartition(".")[2] not in _DECODED:
            return None
        return self._library.autodecode.basichandlers(suffix, content)

    def _indexed(self, file: SourceFile) -> bytes:
        """[samples + 1] the byte at which each begins, and the end. Of a compressed file they only
        say how many there are."""
        try:
            return self._headers_of(file).tobytes()
        except Exception as error:
            what = f"{file.path} cannot be read as a tar file"
            raise not_opened(self.source, what, error) from error

    def _headers_of(self, file: SourceFile) -> Int64Array:
        group = self._library.tariterators.group_by_keys
        mode: Any = "r|*" if _is_compressed(file) else "r:"
        with (
            file.open() as opened,
            # tarfile takes a damaged header, or none, for the end of the archive.
            tarfile.open(fileobj=opened, mode=mode, tarinfo=_Member) as archive,
        ):
            # Files that are twice in a sample are an error once it is read.
            samples = group(_headers(archive), handler=lambda error: True)
            begins = [min(v for v in s.values() if isinstance(v, int)) for s in samples]
            return np.array([*begins, archive.offset], np.int64)


def _headers(archive: tarfile.TarFile) -> Iterator[dict[str, Any]]:
    """What the library's `tar_file_iterator` yields, with where a file begins as its content."""
    for member in archive:
        archive.members.clear()  # type: ignore[attr-defined]
        if member.isreg() and not _META.match(member.name):
            yield {"fname": member.name, "data": member.offset, "__url__": ""}


def _is_compressed(file: SourceFile) -> bool:
    return not file.path.endswith(".tar")
