"""Megatron-Energon: WebDataset shards that `energon prepare` indexes, a task encoder, a savable
loader; a metadataset blends the sources of the mixture."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from megatron.energon import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon import Sample as EnergonSample

from benchmarks.peers.adapters.parts import parts
from benchmarks.peers.work import Batch, Work, decode, pad, stack, tokenize

SHARD = 100
"""Samples: every worker of every rank needs shards of its own."""
BUFFER = {"text": 1000, "images": 100}
"""Samples to shuffle among. They are prepared before they are shuffled: a thousand pictures would
be decoded before the first batch, and few more in the middle of the epoch, which is measured."""


def convert(workload: str, raw: Path, to: Path) -> None:
    kind = "jpg" if workload == "images" else "txt"
    weights = Work(workload, "", 0, 0, 1, 0, 0, 0).weights()
    blend = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:"]
    blend += ["  train:", "    blend:"]
    for number, (name, part) in enumerate(parts(workload, raw)):
        folder = to / name
        folder.mkdir()
        _write(folder, kind, list(part))
        energon = Path(sys.executable).with_name("energon")
        command = [str(energon), "prepare", "--non-interactive", "--split-ratio", "1,0,0"]
        command += ["--sample-type", "CrudeWebdataset", "--num-workers", "2", str(folder)]
        subprocess.run(command, check=True)
        blend += [f"      - weight: {weights[number]}", f"        path: ./{name}"]
    (to / "blend.yaml").write_text("\n".join(blend) + "\n")


def _write(folder: Path, kind: str, rows: Sequence[tuple[int, bytes]]) -> None:
    for shard in range(0, len(rows), SHARD):
        with tarfile.open(folder / f"{shard // SHARD:06}.tar", "w") as tar:
            for number, content in rows[shard : shard + SHARD]:
                entry = tarfile.TarInfo(f"{number:09}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, BytesIO(content))


@edataclass
class Prepared(EnergonSample):
    value: Any
    """What `work` makes of it."""


@stateless
def _cook(row: CrudeSample) -> Prepared:
    number = int(row["__key__"].rpartition("/")[2])
    text = row.get("txt")
    value = decode(number, row["jpg"]) if text is None else tokenize(number, text.decode())
    return Prepared(**basic_sample_keys(row), value=value)


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(_cook),)
    decoder = None

    def __init__(self, collate: Any) -> None:
        super().__init__()
        self._collate = collate

    def batch(self, samples: list[Prepared]) -> Batch:
        made: Batch = self._collate([sample.value for sample in samples])
        return made

    def encode_batch(self, batch: Batch) -> Batch:
        return batch


def _loader(work: Work, path: str, encoder: Encoder, **more: Any) -> Any:
    config = WorkerConfig(rank=work.rank, world_size=work.ranks, num_workers=work.workers)
    dataset = get_train_dataset(
        f"{work.folder}/{path}",
        worker_config=config,
        max_samples_per_sequence=SHARD,
        task_encoder=encoder,
        batch_size=work.batch_size,
        shuffle_buffer_size=BUFFER.get(work.workload, BUFFER["text"]),
        **more,
    )
    return get_savable_loader(dataset)


def padded(work: Work) -> Any:
    return _loader(work, "all", Encoder(pad), repeat=False)


def images(work: Work) -> Any:
    return _loader(work, "all", Encoder(stack), repeat=False)


def mixture(work: Work) -> Any:
    return _loader(work, "blend.yaml", Encoder(pad))
