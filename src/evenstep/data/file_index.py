"""What opening a file finds out, found once and kept: where the samples of a tar or JSON Lines file
are, the row groups and the schema of a Parquet file, the digest of a source's content. Later starts
and other loaders read the index, and not the files.

The index is a folder, or a URL that fsspec knows, that the environment variable EVENSTEP_INDEX
names; by default ``~/.cache/evenstep``. An entry is of one version of one file. The entries of the
files of one folder are together in a few *packs*, files that are written whole and never changed:

    INDEX/what the entries say, and of which folder/which entries it has.npz

A pack of new entries is added beside the others. Once there are many small ones, one that has all
of their entries takes their place. So any number of processes may read and write at once, and none
loses what another has found. A pack that is damaged, or cannot be written, costs its entries alone:
they are found again.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np

from evenstep.data.source_files import SourceFile, in_threads
from evenstep.errors import ConfigurationError, described, without_queries
from evenstep.files import replacing

logger = logging.getLogger("evenstep")

FOLDER_VARIABLE = "EVENSTEP_INDEX"
_LEAST = 1 << 20
"""Bytes of a source's files on this machine; fewer are read as fast."""
_AT_ONCE, _AT_ONCE_BYTES = 512, 1 << 34
"""Files after which what was found is kept, and their bytes, about."""
_SMALL, _MANY = 4 << 20, 8
"""Bytes of a pack that is small, and how many of these become one."""
_lock = threading.Lock()


@dataclass
class Tally:
    """Counts of the files that are opened while it is `watched`."""

    files: int = 0
    bytes: int = 0
    kept: int = 0
    """Files that had an entry."""
    made: int = 0
    """Files that were read for one."""
    lost: int = 0
    """Files that were read for one which could not be written."""


_tallies: list[tuple[Tally, Callable[[Tally], None]]] = []


@contextmanager
def watched(tell: Callable[[Tally], None] = lambda tally: None) -> Iterator[Tally]:
    """Counts what all threads of this process open, and calls `tell` at each change."""
    entry = Tally(), tell
    _tallies.append(entry)
    try:
        yield entry[0]
    finally:
        _tallies.remove(entry)


def _count(**counts: int) -> None:
    with _lock:
        for tally, tell in _tallies:
            for name, count in counts.items():
                setattr(tally, name, getattr(tally, name) + count)
            tell(tally)


def kept_indices(
    files: Sequence[SourceFile], layout: str, make: Callable[[SourceFile], bytes]
) -> list[bytes]:
    """The entry of each file of a source: as kept, or made and kept.

    Args:
        layout: what an entry says, such as "tar" or "blocks of 512 lines".
        make: reads a file for it; called by several threads.

    Raises:
        Exception: as `make` raises it, of the first file that has an error.
    """
    packs = {name: _Packs(layout, name) for name in dict.fromkeys(map(_folder_of, files))}
    keys = [_key(file) for file in files] if _worth_keeping(files) else [None] * len(files)
    wanted = {key for key in keys if key is not None}
    kept = in_threads(lambda pack: pack.read(wanted), list(packs.values()) if wanted else [])
    found: dict[str | None, bytes] = {key: entry for each in kept for key, entry in each.items()}
    entries = [found.get(key, b"") for key in keys]
    missing = [number for number, key in enumerate(keys) if key not in found]
    size = sum(file.size for file in files)
    _count(files=len(files), bytes=size, kept=len(files) - len(missing))

    def made(number: int) -> bytes:
        entry = make(files[number])
        _count(made=1)
        return entry

    writable = True
    for part in _parts(missing, files):
        new: dict[str, dict[str, bytes]] = defaultdict(dict)
        for number, entry in zip(part, in_threads(made, part)):
            entries[number] = entry
            if (key := keys[number]) is not None:
                new[_folder_of(files[number])][key] = entry
        writable = writable and _write(packs, new)
        if not writable:
            _count(lost=len(part))
    return entries


def kept_digest(files: Sequence[SourceFile], make: Callable[[], str]) -> str:
    """The digest of the content of all files of a source: as kept, or made and kept.

    Raises:
        Exception: as `make` raises it.
    """
    key = _key(*files) if _worth_keeping(files) else None
    if key is None:
        return make()
    folder = _folder_of(files[0])
    packs = _Packs("digest of content", folder)
    found = packs.read({key})
    if key in found:
        return found[key].decode()
    digest = make()
    _write({folder: packs}, {folder: {key: digest.encode()}})
    return digest


def _write(packs: Mapping[str, _Packs], new: Mapping[str, Mapping[str, bytes]]) -> bool:
    """Keeps new entries, by folder; False, and a warning, where that fails."""
    try:
        in_threads(lambda name: packs[name].add(new[name]), list(new))
    except Exception as error:  # file systems raise their own types
        logger.warning(
            "the index of %s is not kept, and made again by every start: %s; set %s to a folder "
            "that can be written",
            *(next(iter(new)), without_queries(described(error)), FOLDER_VARIABLE),
        )
        return False
    return True


class _Packs:
    """The entries of one layout of the files of one folder."""

    def __init__(self, layout: str, folder: str) -> None:
        from fsspec.core import url_to_fs

        name = _hash(layout, folder)
        try:
            system, place = url_to_fs(_place())
        except ValueError as error:
            raise ConfigurationError(
                f"{FOLDER_VARIABLE}={_place()} is no URL that fsspec knows: {error}; name a folder"
            ) from error
        self._system, self._folder = system, f"{place.rstrip('/')}/{name}"

    def read(self, wanted: set[str] | None = None) -> dict[str, bytes]:
        """The kept entries, by key, of those that are wanted; None wants all."""
        for _ in range(3):  # another process may just have made one pack of several
            with suppress(FileNotFoundError):
                return self._read(self._listed(), wanted)
        return {}

    def add(self, entries: Mapping[str, bytes]) -> None:
        """Keeps entries.

        Raises:
            Exception: they cannot be written.
        """
        small = [path for path, size in self._listed().items() if size < _SMALL]
        merged = small if len(small) + 1 >= _MANY else []
        try:
            entries = {**self._read(merged, None), **entries}
        except FileNotFoundError:  # another process is just doing the same
            merged = []
        path = f"{self._folder}/{_hash(*sorted(entries))}.npz"
        keys = sorted(entries)
        ends = np.cumsum([len(entries[key]) for key in keys])
        content = np.frombuffer(b"".join(entries[key] for key in keys), np.uint8)
        packed = io.BytesIO()
        np.savez_compressed(packed, keys=np.array(keys, "S32"), ends=ends, content=content)
        if "file" in self._system.protocol:
            with replacing(path) as partial:
                partial.write_bytes(packed.getvalue())
        else:
            self._system.pipe_file(path, packed.getvalue())
        for old in merged:
            if old != path:
                with suppress(FileNotFoundError):
                    self._system.rm_file(old)

    def _listed(self) -> dict[str, int]:
        """The path and size of each pack."""
        try:
            self._system.invalidate_cache(self._folder)
            found = self._system.ls(self._folder, detail=True)
        except Exception as error:  # file systems raise their own types
            logger.debug("%s cannot be listed: %s", self._folder, described(error))
            return {}
        return {i["name"]: int(i["size"]) for i in found if i["name"].endswith(".npz")}

    def _read(self, paths: Iterable[str], wanted: set[str] | None) -> dict[str, bytes]:
        """
        Raises:
            FileNotFoundError: a pack is gone.
        """
        entries: dict[str, bytes] = {}
        for path in paths:
            try:
                packed = self._system.cat_file(path)
                # The archive has checksums, and cannot hold programs.
                with np.load(io.BytesIO(packed), allow_pickle=False) as pack:
                    keys, ends, content = pack["keys"], pack["ends"], pack["content"].tobytes()
                begins = [0, *ends.tolist()]
                for key, begin, end in zip(keys.tolist(), begins, begins[1:]):
                    if wanted is None or key.decode() in wanted:
                        entries[key.decode()] = content[begin:end]
            except FileNotFoundError:
                raise
            except Exception as error:  # of damaged archives, and of file systems
                logger.debug("the index %s cannot be read: %s", path, described(error))
        return entries


def _worth_keeping(files: Sequence[SourceFile]) -> bool:
    return not all(file.local for file in files) or sum(file.size for file in files) >= _LEAST


def _key(*files: SourceFile) -> str | None:
    """Identifies the versions of files; None where the storage tells no more of one than its size,
    which may stay while the content changes. Of a file of this machine also the time of its last
    change of any kind counts: that of modification may be set, as by copies that keep it."""
    if any(len(file.version) < 2 for file in files):
        return None
    changes = [os.stat(file.path).st_ctime_ns if file.local else 0 for file in files]
    return _hash(*((without_queries(f.path), dict(f.version)) for f in files), changes)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _folder_of(file: SourceFile) -> str:
    return os.path.dirname(without_queries(file.path))


def _parts(missing: Sequence[int], files: Sequence[SourceFile]) -> Iterator[list[int]]:
    """Files after each of which what was found is kept, so that a start that is ended loses
    little."""
    begins = accumulate((files[number].size for number in missing), initial=0)
    turns = ((n // _AT_ONCE, begin // _AT_ONCE_BYTES) for n, begin in enumerate(begins))
    for _, part in groupby(zip(turns, missing), lambda each: each[0]):
        yield [number for _, number in part]


def _place() -> str:
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return given
    home = os.path.expanduser("~")  # "~" itself for a user without one
    return os.path.join(home if os.path.isabs(home) else tempfile.gettempdir(), ".cache/evenstep")
