"""What all peers read, made once under out/peers/data: text, sources of text, pictures.

Text is the functions and classes of Python's standard library, as in `evenstep demo`: those of 8 to
`MOST_TOKENS` tokens, over and over. The sources of the mixture divide the same text. Pictures are
generated JPEGs of about the sizes of photographs on the web.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from benchmarks.lib.report import progress
from benchmarks.peers.registry import PEERS, python_of
from benchmarks.peers.work import MOST_TOKENS, SOURCES
from evenstep_demos.text.corpus import blocks_of
from evenstep_demos.text.prepared_text import train_tokenizer

ROOT = Path("out/peers")
SAMPLES = {"padded": 24_000, "images": 4000, "mixture": 12_000}
QUICK = {"padded": 1200, "images": 300, "mixture": 1200}
LEAST_TOKENS = 8
VOCABULARY = 16_000


def samples_of(workload: str, quick: bool) -> int:
    return (QUICK if quick else SAMPLES)[workload]


def tokenizer_file(quick: bool) -> Path:
    return _root(quick) / "tokenizer.json"


def raw(workload: str, quick: bool) -> Path:
    """The folder with the raw data of a workload, made if it is not there."""
    folder = _root(quick) / workload
    if not (folder / "made").exists():
        progress(f"making the data: {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if workload == "images":
            _pictures(folder, samples_of(workload, quick))
        else:
            documents = _documents(quick)
            if workload == "mixture":
                for source in range(SOURCES):
                    _write(folder / f"{source:02}.jsonl", documents[source::SOURCES])
            else:
                _write(folder / "text.jsonl", documents)
        (folder / "made").touch()
    return folder


def converted(name: str, workload: str, quick: bool) -> Path:
    """The folder with a workload in a peer's own format, made if it is not there."""
    source = raw(workload, quick)
    peer = PEERS[name]
    if "def convert(" not in Path(f"benchmarks/peers/adapters/{peer.adapter}.py").read_text():
        return source
    folder = _root(quick).parent / name / f"{workload}{'-quick' * quick}"
    made = folder.with_name(folder.name + ".made")
    if not made.exists():
        progress(f"converting {workload} for {name}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        given = {"adapter": peer.adapter, "workload": workload, "raw": str(source)}
        given |= {"to": str(folder), "out": str(folder.with_name("conversion.json"))}
        command = [python_of(name), "-m", "benchmarks.peers.rank", json.dumps(given)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        made.touch()
    return folder


def _root(quick: bool) -> Path:
    return ROOT / ("data-quick" if quick else "data")


def _documents(quick: bool) -> list[tuple[int, str]]:
    """Id and text. Writes the tokenizer that has seen them."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    blocks = sorted({block for path in paths for block in blocks_of(path)})
    random.Random(0).shuffle(blocks)
    file = tokenizer_file(quick)
    if not file.exists():
        file.write_text(train_tokenizer(blocks, VOCABULARY))
    tokenizer = Tokenizer.from_file(str(file))
    fit = (text for text in blocks if 2 * LEAST_TOKENS < len(text) < 10 * MOST_TOKENS)
    kept = list(_of_length(fit, tokenizer))
    return list(zip(range(samples_of("padded", quick)), itertools.cycle(kept)))


def _of_length(blocks: Iterator[str], tokenizer: Tokenizer) -> Iterator[str]:
    for text in blocks:
        if LEAST_TOKENS <= len(tokenizer.encode(text).ids) <= MOST_TOKENS:
            yield text


def _write(path: Path, rows: Sequence[tuple[int, str]]) -> None:
    lines = (json.dumps({"id": number, "text": text}) for number, text in rows)
    path.write_text("\n".join(lines) + "\n")


def _pictures(folder: Path, count: int) -> None:
    """Smooth, with some noise: as a JPEG about as large as a photograph."""
    generator = np.random.default_rng(0)
    for number in range(count):
        width, height = generator.integers(240, 640, 2).tolist()
        across, down = np.linspace(0, 9, width), np.linspace(0, 9, height)[:, None]
        waves = np.stack([np.sin(across * (1 + c) + down + number) for c in range(3)], -1)
        noise = generator.integers(-12, 13, (height, width, 1))
        pixels = (128 + 90 * waves + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:06}.jpg", quality=85)
