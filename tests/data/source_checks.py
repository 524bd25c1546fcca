"""What every kind of source is held to."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from evenstep.data import Source, SourceReader, StoredSample, open_reader


def write_tar(path: Path, files: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def take(reader: SourceReader, count: int, position: int = 0, **options: Any) -> list[StoredSample]:
    return list(itertools.islice(reader.read(position, **options), count))


def check_order_and_seeking(
    make: Callable[[], Source],
    samples: int,
    *,
    seeks: Iterable[int] | None = None,
    alike: bool = True,
) -> list[StoredSample]:
    """Two passes and a bit: each has every sample once; `order` says what is read; a new reader
    that seeks any position reads what the first one read there.

    Args:
        alike: an identity is the same sample in every pass.

    Returns:
        The items of the first pass.
    """
    total = 2 * samples + 3
    with open_reader(make(), seed=7) as reader:
        whole = take(reader, total)
        fingerprint = reader.fingerprint
        assert reader.size in (samples, None)
        assert reader.size == samples or reader.fingerprint["format"] == "iterable dataset"
        assert [tuple(reader.order(i.position)) for i in whole] == [
            (i.pass_number, i.shard, i.index) for i in whole
        ]
    assert [item.position for item in whole] == list(range(total))
    assert [item.pass_number for item in whole] == [p // samples for p in range(total)]
    first, second = whole[:samples], whole[samples : 2 * samples]
    places = {(item.shard, item.index) for item in first}
    assert len(places) == samples
    assert {(item.shard, item.index) for item in second} == places
    stored = {(item.shard, item.index): item.sample for item in whole}
    assert not alike or all(stored[item.shard, item.index] == item.sample for item in whole)
    with open_reader(make(), seed=7, repeat=False) as once:
        assert [item.sample for item in once.read(samples - 3)] == [i.sample for i in first[-3:]]
    with open_reader(make(), seed=7) as again:
        assert json.loads(json.dumps(again.fingerprint)) == fingerprint
        assert take(again, samples + 5, passes=1) == first
        for position in range(0, total, max(total // 15, 1)) if seeks is None else seeks:
            assert tuple(again.order(position)) == (
                whole[position].pass_number,
                whole[position].shard,
                whole[position].index,
            )
            assert take(again, total - position, position) == whole[position:], position
    with open_reader(make(), seed=7) as fresh:
        assert take(fresh, 4, samples - 2) == whole[samples - 2 : samples + 2]
    return first
