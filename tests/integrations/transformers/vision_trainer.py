"""Trainers of tiny vision-language models, which tell on which rows they were trained, and how.

The rows are raw: images and messages. Tokens and pixels are made by the collate function, as in
scripts that users write. A row is known again by its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tiny_trainer import Seen, Witness, arguments, gathered, losses, together
from transformers import Trainer
from update_checks import documents_in
from vision_rows import Collate, of_one_batch

from families import Family


def telling(base: type, seen: Seen, known: dict[tuple[int, ...], int]) -> type:
    """A trainer's class that notes in `seen` the rows that bear loss."""

    class Telling(base):  # type: ignore[misc,valid-type]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if model.training:
                seen.samples[-1] += rows_in(inputs, known)
            return super().compute_loss(model, inputs, *args, **kwargs)

    Telling.__name__ = base.__name__
    return Telling


def rows_in(inputs: Any, known: dict[tuple[int, ...], int]) -> list[int]:
    """The rows of a batch, padded or packed, that have supervised tokens."""
    labels = inputs["labels"]
    if "input_ids" not in inputs:  # speech
        rows = zip(inputs["input_features"], labels, strict=True)
        return [known[loudness(sound)] for sound, row in rows if (row != -100).any()]
    return [row_of(tokens, known) for tokens in documents_in(inputs)]


def row_of(tokens: tuple[int, ...], known: dict[tuple[int, ...], int]) -> int:
    """The row that these tokens begin with: a blank image may follow."""
    (number,) = (n for own, n in known.items() if tokens[: len(own)] == own)
    return number


def identities(collate: Collate, rows: Sequence[Any]) -> dict[tuple[int, ...], int]:
    """Tokens of each row, by which it is known again."""
    found = {}
    for number, row in enumerate(rows):
        batch = collate([dict(row)])
        if "input_ids" in batch:
            key = tuple(batch["input_ids"][0][batch["attention_mask"][0].bool()].tolist())
        else:
            key = loudness(batch["input_features"][0])
        found[key] = number
    assert len(found) == len(rows), "two rows have the same tokens"
    return found


def loudness(sound: torch.Tensor) -> tuple[int, ...]:
    return (round(1000 * sound.double().mean().item()),)


def check_updates(
    trainer: Trainer, seen: Seen, collate: Collate, rows: Sequence[Any], *, first: int = 2
) -> None:
    """Every row once; gradient and loss of the first updates are those of one batch of their rows.
    The learning rate is 0."""
    updates = [update for update in together(gathered(seen)) if update]
    assert sorted(number for update in updates for number in update) == list(range(len(rows)))
    logged = losses(trainer)
    assert len(logged) == len(updates) == len(seen.gradients) == trainer.state.global_step
    for update, gradient, loss in list(zip(updates, seen.gradients, logged, strict=True))[:first]:
        mean, expected = of_one_batch(trainer.model, collate, [rows[n] for n in update])
        assert abs(loss - mean) <= 1e-5 * abs(mean)
        assert (gradient - expected).abs().max() <= 1e-5 * expected.abs().max()


def make_trainer(
    folder: Any, family: Family, rows: Sequence[Any], *, extra: Any = None, **options: Any
) -> tuple[Any, Seen]:
    """Hugging Face's Trainer, with the collate function that users of the family write.

    Args:
        extra: arguments of the trainer.
        **options: training arguments.
    """
    given = {"train_dataset": rows, "data_collator": family.collate, **(extra or {})}
    seen = Seen()
    known = identities(given["data_collator"], [rows[n] for n in range(len(rows))])
    trainer = telling(Trainer, seen, known)(
        model=family.model(0),
        args=arguments(folder, remove_unused_columns=False, **options),
        **given,
    )
    trainer.add_callback(Witness(seen))
    return trainer, seen
