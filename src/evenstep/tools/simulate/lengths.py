"""The lengths of a simulation: from a file of recorded lengths, or a named distribution."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, EvenstepError, described, needing
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least, check_lengths, not_integers
from evenstep.tools.simulate.distributions import DISTRIBUTIONS, sample_lengths

PARQUET = re.compile(r"(?P<path>.*\.parquet)(?::(?P<column>.*))?")
"""``FILE.parquet`` or ``FILE.parquet:COLUMN``."""


def load_lengths(spec: str, *, samples: int | None = None, seed: int = 0) -> Int64Array:
    """Lengths named by `spec`.

    Args:
        spec: ``FILE.npy``, ``FILE.parquet:COLUMN`` or a name in `DISTRIBUTIONS`.
        samples: samples to return; needed for a distribution. From a file that holds more, that
            many are chosen at random and stay in the file's order; from one that holds fewer, all
            are returned. None takes the whole file.
        seed: seed of the draw.

    Returns:
        [samples] int64 lengths in tokens, all positive.

    Raises:
        ConfigurationError: no such name, file or column; or lengths that are not integers, not
            positive, or none at all.
        ImportError: a Parquet file without pyarrow (the extra ``cli``).
    """
    check_at_least(1, samples=samples)
    if spec in DISTRIBUTIONS:
        if samples is None:
            raise ConfigurationError(f"{spec} is a distribution; give the number of samples")
        return sample_lengths(spec, samples, seed)
    lengths = check_lengths(_read(spec), spec)
    return lengths[chosen_samples(len(lengths), samples, seed)]


def chosen_samples(count: int, samples: int | None, seed: int) -> Int64Array:
    """Positions of at most so many of `count` samples, chosen at random, ascending."""
    if samples is None or samples >= count:
        return np.arange(count)
    random = generator(seed, RandomStream.SIMULATED_LENGTHS)
    return np.sort(random.choice(count, samples, replace=False))


def existing_file(path: str) -> Path:
    """`path` as a `Path`; raises `ConfigurationError` if it is not a file."""
    if not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path}")
    return Path(path)


def pick_column(column: str | None, names: Sequence[str], where: object) -> str:
    """`column`; raises `ConfigurationError` if it is not one of `names`."""
    if column in names:
        assert column is not None
        return column
    problem = f"{where} has no column {column!r}." if column else f"{where} has several columns."
    raise ConfigurationError(f"{problem} Give {where}:COLUMN with one of {', '.join(names)}")


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Opens the file as a `pyarrow.parquet.ParquetFile`.

    Raises:
        ConfigurationError: the file cannot be read, at once or inside the block.
        ImportError: pyarrow is not installed.
    """
    with needing(f"reading {path} needs pyarrow", "cli"):
        import pyarrow.parquet as parquet
    try:
        # Of a relative path, pyarrow takes what is before a colon for a file system.
        with parquet.ParquetFile(path.absolute()) as file:
            yield file
    except EvenstepError:
        raise
    except Exception as error:  # Arrow raises many kinds over a damaged file
        raise ConfigurationError(
            f"{path} cannot be read as a Parquet file: {described(error)}"
        ) from error


def _read(spec: str) -> npt.NDArray[Any]:
    parquet = PARQUET.fullmatch(spec)
    if parquet is not None:
        return _read_parquet(existing_file(parquet["path"]), parquet["column"])
    if spec.endswith(".npy"):
        path = existing_file(spec)
        try:
            array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
        except Exception as error:  # a damaged header is evaluated as Python
            raise ConfigurationError(f"{spec} cannot be read as a .npy array: {error}") from error
        return array
    raise ConfigurationError(
        f"unknown lengths {spec!r}: give FILE.npy, FILE.parquet:COLUMN or one of "
        f"{', '.join(DISTRIBUTIONS)}"
    )


def _read_parquet(path: Path, column: str | None) -> npt.NDArray[Any]:
    with open_parquet(path) as file:
        import pyarrow as arrow

        schema = file.schema_arrow
        name = pick_column(column, schema.names, path)
        kind = schema.field(name).type
        if not arrow.types.is_integer(kind):
            raise not_integers(f"{path}:{name}", kind)
        values = file.read(columns=[name]).column(name)
    if values.null_count:
        raise ConfigurationError(
            f"{path}:{name} has {values.null_count:,} empty values; every sample needs a length"
        )
    array: npt.NDArray[Any] = values.to_numpy()
    return array
