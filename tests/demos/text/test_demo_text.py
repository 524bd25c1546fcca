"""What the demo trains on: documents of a corpus, tokens of them, and budgets for both runs."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import torch

from evenstep_demos.text.corpus import Corpus, read_standard_library
from evenstep_demos.text.prepared_text import (
    END,
    load_tokenizer,
    prepare,
)


def _write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def test_blocks_that_are_blank_unreadable_or_copies_are_left_out(tmp_path: Path) -> None:
    files = {
        "a.py": b"x = 1\n",
        "pkg/copy_of_a.py": b"x = 1\n",
        "two.py": b"import y\n\n\ndef f():\n    pass\n\n\n\n    x\n\n\n@g\nclass C: ...\n",
        "pkg/latin.py": "# -*- coding: latin-1 -*-\n# caf\u00e9\n".encode("latin-1"),
        "broken.py": b"# \xff\xfe\n",
        "empty.py": b"",
        "blank.py": b" \n",
        "notes.txt": b"not python",
        "site-packages/other.py": b"y = 2\n",
    }
    _write(tmp_path, files)
    read = read_standard_library(0, tmp_path)
    assert sorted(read.documents) == [
        "# -*- coding: latin-1 -*-\n# caf\u00e9\n",
        "@g\nclass C: ...\n",
        "def f():\n    pass\n\n\n\n    x",
        "import y",
        "x = 1\n",
    ]
    assert read.found == 9


LIMIT, VOCABULARY = 64, 300


def _corpus(count: int) -> Corpus:
    draw = random.Random(0)
    documents = [
        f"{i}: " + " ".join(draw.choices(["def", "return", "self", "import", "x", "y"], k=length))
        for i, length in enumerate(draw.choices([2, 8, 16, 40, 400], k=count))
    ]
    return Corpus(name="words", documents=documents, found=count)


def test_documents_are_trained_on_held_out_or_too_long() -> None:
    corpus = _corpus(200)
    task, too_long = prepare(corpus, LIMIT, VOCABULARY, ranks=2, model=torch.nn.Module)
    used = [*task.training.texts, *task.held_out.texts]
    assert len(set(used)) == len(used)
    assert len(used) + too_long == len(corpus.documents)
    encode = load_tokenizer(task.training.tokenizer).encode
    for text in corpus.documents:
        assert (len(encode(text).ids) + 1 <= LIMIT) == (text in used)
    samples = list(pickle.loads(pickle.dumps(task.training)))
    assert [len(sample["input_ids"]) for sample in samples] == task.lengths.tolist()
    tokenizer = load_tokenizer(task.training.tokenizer)
    for sample, text in zip(samples, task.training.texts):
        *tokens, last = sample["input_ids"].tolist()
        assert last == END
        assert END not in tokens
        assert tokenizer.decode(tokens) == text
        assert sample["labels"].tolist() == [*tokens, last]
