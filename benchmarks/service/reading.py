"""What opening sources costs, and what is read for what is delivered, of Parquet, JSON Lines and
tar files, on this machine's disk and in S3 (moto's server, on this machine).

    --part opening   seconds, processor time, requests and bytes from which a start's sources are
                     open and their content is known: without an index, which it then has, and with
    --part sharing   bytes read for each byte of the files, where 1, 4 and 16 loaders share one
                     source that has an index, in a pass over it, without a cache of the host
                     and with a new one; in parentheses the requests

Bytes of a disk are those of the process's system calls, page cache or not; those of S3 are the
bodies of the server's answers. Loaders are threads of one process, each with a reader of its own.
"""

from __future__ import annotations

import io
import json
import logging
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from benchmarks.lib.report import Table, parser, progress, show
from evenstep.data import open_reader, open_readers
from evenstep.data.block_cache import BlockCache
from evenstep.data.file_index import FOLDER_VARIABLE
from evenstep.data.source_files import list_files
from evenstep.service.job.source_layout import SourceLayout

KINDS = ("parquet", "jsonl", "tar", "tar.gz")
CACHED = "S3, cache"
PLACES = ("disk", "S3", CACHED)
TEXT = 3000  # bytes of a sample
SMALL = 5  # samples of a file that is only opened
STEP = 200  # samples


def write(path: Path, samples: int, rng: np.random.Generator) -> None:
    """A file of samples that do not compress."""
    texts = [rng.integers(97, 123, TEXT, np.uint8).tobytes() for _ in range(samples)]
    compressed = path.suffix == ".gz"
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.binary())})
        options = {"compression": "none", "use_dictionary": False}
        pyarrow.parquet.write_table(table, path, row_group_size=500, **options)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": t.decode()}) + "\n" for t in texts))
    else:
        with tarfile.open(path, "w:gz" if compressed else "w") as tar:
            for number, text in enumerate(texts):
                info = tarfile.TarInfo(f"{number:06}.text")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text))


class Served:
    """What a server of S3 in this process has answered."""

    def __init__(self) -> None:
        self.requests = self.bytes = 0
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[dict[str, Any]]:
        """Yields the options with which fsspec reads it."""
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        application = DomainDispatcherApplication(create_backend_app)

        def counted(environ: Any, start: Any) -> Iterator[bytes]:
            body = list(application(environ, start))
            with self._lock:
                self.requests += 1
                self.bytes += sum(map(len, body)) if environ["REQUEST_METHOD"] == "GET" else 0
            return iter(body)

        server = make_server("127.0.0.1", 0, counted, threaded=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            yield {"key": "key", "secret": "secret", "endpoint_url": address}
        finally:
            server.shutdown()
            thread.join()


def read_so_far(served: Served | None) -> tuple[int, int]:
    """Bytes and requests."""
    if served is not None:
        return served.bytes, served.requests
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"]), int(counts["syscr"])


@contextmanager
def files_at(
    place: str, kind: str, folders: int, files: int, samples: int, seed: int
) -> Iterator[tuple[str, dict[str, Any], Served | None]]:
    """Files of a kind in folders 0, 1, ...; yields where they are, fsspec's options, and the
    server."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "data")
        for number in range(folders):
            (folder / str(number)).mkdir(parents=True)
            for part in range(files):
                write(folder / str(number) / f"{part:05}.{kind}", samples, rng)
        os.environ[FOLDER_VARIABLE] = f"{name}/index"
        if place == "disk":
            yield str(folder), {}, None
            return
        import s3fs

        served = Served()
        with served.running() as options:
            system = s3fs.S3FileSystem(**options, skip_instance_cache=True)
            system.mkdir("corpus")
            system.put(f"{folder}/", "corpus/", recursive=True)
            yield "s3://corpus", options, served
            system.rm("corpus", recursive=True)


def opening(place: str, kind: str, sources: int, files: int, samples: int, seed: int) -> list[str]:
    with files_at(place, kind, sources, files, samples, seed) as (where, options, served):
        cells = [kind, place]
        for _ in ("without", "with"):
            given = [
                es.Source(f"{n}", f"{where}/{n}/*.{kind}", storage_options=options)
                for n in range(sources)
            ]
            before, begin, used = read_so_far(served), time.perf_counter(), time.process_time()
            for reader in open_readers(given):
                _ = reader.fingerprint
                reader.close()
            seconds, used = time.perf_counter() - begin, time.process_time() - used
            size, requests = (b - a for a, b in zip(before, read_so_far(served)))
            cells += [f"{seconds:.1f} ({used:.1f})", f"{requests:,}", f"{size / 1e6:,.1f}"]
    return cells


def prepared(row: Mapping[str, Any]) -> dict[str, Any]:
    text = row["text"].encode() if isinstance(row["text"], str) else row["text"]
    return {"input_ids": np.frombuffer(text, np.uint8)[:64].astype(np.int64)}


def strategy(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP").cost(lambda n: n).balance().plan()


def sharing(place: str, kind: str, loaders: list[int], samples: int, seed: int) -> list[str]:
    files = 8
    cells = [kind, place]
    with files_at(place, kind, 1, files, samples // files, seed) as (where, options, served):

        def source(cache: BlockCache | None = None) -> es.Source:
            url = f"{where}/0/*.{kind}"
            return es.Source("s", url, transform=prepared, storage_options=options, cache=cache)

        whole = sum(file.size for file in list_files(source()))
        with open_reader(source()) as reader:
            _ = reader.fingerprint  # for the index
        for count in loaders:
            progress(f"{kind}, {place}, {count} loaders")
            with tempfile.TemporaryDirectory() as folder:
                job = es.Job(
                    sources=[source(BlockCache(folder) if place == CACHED else None)],
                    mesh=es.Mesh(DP=1),
                    strategy=strategy,
                    max_tokens=64 * STEP * 2,
                    draws=es.DrawOptions(samples_per_step=STEP),
                    memory=es.ServiceMemory(buffer_size=32),
                )
                before = read_so_far(served)
                layout = SourceLayout.of(["s"], count)
                with es.start(job, backend="local", loaders=layout) as service:
                    client = service.client(0)
                    for _ in range(samples // STEP):
                        next(client)
                    size, requests = (b - a for a, b in zip(before, read_so_far(served)))
            cells.append(f"{size / whole:.2f} ({requests:,})")
    return cells


def main() -> None:
    example = "python -m benchmarks.service.reading --part sharing --places disk"
    arguments = parser(__doc__ or "", example, repeats=1)
    arguments.add_argument("--part", choices=["opening", "sharing"], nargs="+")
    arguments.add_argument("--places", choices=PLACES, nargs="+", default=PLACES)
    arguments.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS)
    arguments.add_argument("--loaders", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--sources", type=int, default=10, help="that are opened")
    arguments.add_argument("--files", type=int, default=1000, help="of each, on disk")
    arguments.add_argument("--files-in-s3", type=int, default=100, help="of each, in S3")
    arguments.add_argument("--samples", type=int, default=16_000, help="of the source shared")
    options = arguments.parse_args()
    tables = []
    cases = [(place, kind) for place in options.places for kind in options.kinds]
    opened = [(place, kind) for place, kind in cases if place != CACHED]
    if "opening" in (options.part or ["opening"]):
        rows = []
        for place, kind in opened:
            progress(f"opening, {kind}, {place}")
            files = options.files if place == "disk" else options.files_in_s3
            rows.append(opening(place, kind, options.sources, files, SMALL, options.seed))
        title = (
            f"Opening {options.sources} sources of {options.files} files, in S3 "
            f"{options.files_in_s3}, of {SMALL} samples"
        )
        heads = ["s (CPU s)", "requests", "MB"]
        columns = ["files", "place", *heads, *(f"{head}, again" for head in heads)]
        tables.append(Table(columns, rows, title))
    if "sharing" in (options.part or ["sharing"]):
        rows = [
            sharing(place, kind, options.loaders, options.samples, options.seed)
            for place, kind in cases
        ]
        columns = ["files", "place", *(f"{count} loaders" for count in options.loaders)]
        tables.append(Table(columns, rows, "Bytes read for a byte of the files (and requests)"))
    show(*tables, as_json=options.json)


if __name__ == "__main__":
    main()
