"""`open_reader`: from the description of a source to the reader of its kind.

The module of a kind is imported when the first source of that kind is opened: a process that reads
files needs no torch, and one that reads JSON Lines no pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from evenstep.data.reader import SourceReader
from evenstep.data.source import FORMATS, Source
from evenstep.data.source_files import in_threads
from evenstep.errors import ConfigurationError, described


def open_reader(source: Source, *, seed: int = 0, repeat: bool = True) -> SourceReader:
    """A reader of the source's data.

    Args:
        source: its description.
        seed: of the order, unless the source has its own.
        repeat: start again after the last sample; False ends after one pass.

    Raises:
        ConfigurationError: no such file, no samples, a column that does not exist, or a file with
            another schema than the first.
        ImportError: a library that the format or the file system needs is not installed.
    """
    seed = source.seed if source.seed is not None else seed
    if source.kind == "dataset":
        reader = _open_dataset(source, seed)
    else:
        module, _, name = FORMATS[source.kind][0].partition(":")
        reader = getattr(import_module(module), name)(source, seed)
    reader.repeat = repeat
    return reader


def open_readers(sources: Sequence[Source], *, seed: int = 0) -> list[SourceReader]:
    """As `open_reader` for each source, several at a time; datasets one after the other, as the
    functions that make them may share something.

    Raises:
        ConfigurationError, ImportError: as `open_reader`, of the first source that has an error;
            none stays open.
    """
    opened: list[SourceReader] = []

    def opened_one(source: Source) -> SourceReader:
        reader = open_reader(source, seed=seed)
        opened.append(reader)
        return reader

    try:
        of_files = iter(in_threads(opened_one, [s for s in sources if s.kind != "dataset"]))
        return [opened_one(s) if s.kind == "dataset" else next(of_files) for s in sources]
    except BaseException:
        for reader in opened:
            reader.close()
        raise


def _open_dataset(source: Source, seed: int) -> SourceReader:
    """A reader of the dataset that `Source.data` is, or makes."""
    from evenstep.data.dataset_readers import IterableReader, MapReader
    from evenstep.data.resumable import is_map_style

    dataset = source.data
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        try:
            dataset = source.data()
        except Exception as error:
            raise ConfigurationError(
                f"source {source.name!r}: the function that makes its dataset raised "
                f"{described(error)}"
            ) from error
        if callable(getattr(dataset, "__next__", None)):
            dataset = source.data  # a generator is used up by one pass, so each pass makes one
    reader = MapReader if is_map_style(dataset) else IterableReader
    return reader(source, seed, dataset)
