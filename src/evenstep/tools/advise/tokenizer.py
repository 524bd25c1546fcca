"""Counts the tokens of text, with a tokenizer that never truncates or pads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError

CountTokens = Callable[[Sequence[str]], "list[int]"]
"""From texts to the number of tokens of each, special tokens included."""


def load_tokenizer(name: str) -> CountTokens:
    """The tokenizer called `name`.

    Args:
        name: a ``tokenizer.json``, a folder with one or one that transformers can read, or a
            name on the Hugging Face hub.

    Raises:
        ConfigurationError: it cannot be loaded.
        ImportError: ``tokenizers`` (for files) or ``transformers`` (for names) is not installed.
    """
    path = Path(name)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if path.is_file() or name.endswith(".json"):
        return _from_file(path)
    return _from_transformers(name)


def _from_file(path: Path) -> CountTokens:
    if not path.is_file():
        raise ConfigurationError(f"there is no tokenizer file {path}")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"reading {path} needs tokenizers: pip install 'evenstep[hub]'"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception
        raise ConfigurationError(f"{path} cannot be read as a tokenizer: {error}") from error
    # A tokenizer.json may set both, which would make long samples look short.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: [len(coded) for coded in tokenizer.encode_batch(list(texts))]


def _from_transformers(name: str) -> CountTokens:
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the tokenizer {name!r} needs transformers: pip install 'evenstep[hub]'; or give a "
            "tokenizer.json"
        ) from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # many kinds: network, authorisation, files, versions
        first = (str(error).splitlines() or [""])[0]
        raise ConfigurationError(
            f"there is no tokenizer {name!r}: it is not a file or folder, and transformers could "
            f"not load it ({type(error).__name__}: {first})"
        ) from error

    def count(texts: Sequence[str]) -> list[int]:
        coded = tokenizer(list(texts), truncation=False, padding=False, verbose=False)
        return [len(tokens) for tokens in coded["input_ids"]]

    return count
