"""What the demo trains on: documents of a corpus, tokens of them, and budgets for both runs."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from evenstep.errors import ConfigurationError
from evenstep.plan import Even, FixedBatch
from evenstep_demos.text.budget import TrainingOptions, _simulate, choose
from evenstep_demos.text.corpus import Corpus, read_parquet, read_standard_library
from evenstep_demos.text.prepared_text import (
    END,
    load_tokenizer,
    prepare,
    train_tokenizer,
)


def _write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def _parquet(path: Path, columns: dict[str, list], rows_per_group: int = 4) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


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


def test_a_folder_without_sources_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--data FILE\.parquet"):
        read_standard_library(0, tmp_path)


def test_rows_of_a_parquet_column_are_read_once_each(tmp_path: Path) -> None:
    texts = [f"document {i}" for i in range(10)]
    path = _parquet(tmp_path / "t.parquet", {"body": [*texts, None, "", "document 3"]})
    read = read_parquet(path, "body", 0)
    assert sorted(read.documents) == sorted(texts)
    assert read.found == 13
    assert read_parquet(path, "body", 1).documents != read.documents


def test_a_wrong_column_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "t.parquet", {"id": [1, 2], "body": ["a", "b"]})
    with pytest.raises(ConfigurationError, match=r"no column 'text'; it has id, body"):
        read_parquet(path, "text", 0)
    with pytest.raises(ConfigurationError, match=r"'id' of .* holds int64, not text"):
        read_parquet(path, "id", 0)


def test_a_file_that_is_not_parquet_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("no parquet")
    for name in ("t.parquet", "missing.parquet"):
        with pytest.raises(ConfigurationError, match=name):
            read_parquet(tmp_path / name, "text", 0)


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


def test_text_that_spells_the_end_token_does_not_end_a_document() -> None:
    tokenizer = train_tokenizer(["some text to train on"], 300)
    text = "before<|end|>after"
    loaded = load_tokenizer(tokenizer)
    ids = loaded.encode(text).ids
    assert END not in ids
    assert loaded.decode(ids) == text


@pytest.mark.parametrize(
    ("documents", "words"),
    [(0, "0 to train on and 0 to hold out, for 2 ranks"), (9, "0 to hold out")],
)
def test_too_little_text_is_refused_with_the_numbers(documents: int, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        prepare(_corpus(documents), LIMIT, VOCABULARY, ranks=2, model=torch.nn.Module)


def test_both_runs_take_about_as_many_steps() -> None:
    max_tokens = 1536
    lengths = np.random.default_rng(2).lognormal(5, 1, 400).astype(np.int64).clip(2, 600)
    options = TrainingOptions(max_tokens=max_tokens)
    choice = choose(lengths, options)
    assert lengths.max() <= choice.max_tokens <= max_tokens
    fixed, even = (
        _simulate(policy, lengths, options).steps
        for policy in (FixedBatch(choice.batch_size), Even(choice.max_tokens))
    )
    assert abs(fixed - even) <= 0.05 * fixed  # steps jump where one more long sample fits
