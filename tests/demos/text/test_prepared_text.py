from __future__ import annotations

import pickle
import random

import pytest
import torch

from evenstep.errors import ConfigurationError
from evenstep_demos.text.corpus import Corpus
from evenstep_demos.text.prepared_text import (
    END,
    load_tokenizer,
    prepare,
    train_tokenizer,
)

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
    assert [len(sample["input_ids"]) for sample in task.training] == task.lengths.tolist()


def test_samples_end_with_the_end_token_and_survive_pickling() -> None:
    samples = prepare(_corpus(100), LIMIT, VOCABULARY, ranks=2, model=torch.nn.Module)[0].training
    tokens = samples[0]["input_ids"]
    assert tokens[-1] == END
    assert (tokens[:-1] != END).all()
    again = pickle.loads(pickle.dumps(samples))
    assert again[0]["labels"].tolist() == tokens.tolist()
    assert load_tokenizer(samples.tokenizer).decode(tokens[:-1].tolist()) == samples.texts[0]


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
