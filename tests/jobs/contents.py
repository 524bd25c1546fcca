"""What batches hold, sample by sample and by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from jobs.job import Job
from jobs.kinds import KINDS, PAD, Example


class Wrong(AssertionError):
    """A batch that does not hold what the dataset gave."""


def fields_of(batch: Any, names: Sequence[str]) -> dict[str, Any]:
    """
    Args:
        names: of the elements of tuples.
    """
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, (tuple, list)):
        return dict(zip(names, batch))
    return {names[0]: batch}


class Contents:
    """Finds samples again in batches."""

    def __init__(self, job: Job, examples: Sequence[Example]) -> None:
        self.job, self.kind, self.examples = job, KINDS[job.kind], examples
        self.names = tuple(examples[0].fields)
        self.name = self.names[0]
        self.numbers = {self._key(e.tokens): i for i, e in enumerate(examples)}
        self.blank: bytes | None = None
        """Tokens of the blank image, as soon as a batch has one."""

    def __call__(self, batch: dict[str, Any]) -> list[tuple[int, bool]]:
        """(number of the sample, whether its labels are there), in the order of the batch.

        Raises:
            Wrong: something in the batch is not as the dataset gives it.
        """
        parts = self._documents(batch) if self._is_packed(batch) else self._rows(batch)
        found = [self._sample(part) for part in parts]
        self._check_media(batch, [number for number, _ in found])
        return found

    def _is_packed(self, batch: dict[str, Any]) -> bool:
        return len(batch[self.name]) == 1 and _bounds(batch) is not None

    def _documents(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        bounds = _bounds(batch)
        width = batch[self.name].shape[1]
        if bounds[-1] != width:
            raise Wrong(f"a packed row of {width} tokens ends at {bounds[-1]}")
        self._check_pairs(batch.get("attention_mask"), bounds)
        parts = []
        for start, end in pairwise(bounds):
            part = {"packed": True}
            for name, value in batch.items():
                pairs = name == "attention_mask"
                if isinstance(value, torch.Tensor) and value.shape[:2] == (1, width) and not pairs:
                    part[name] = value[0, start:end]
            places = batch.get("position_ids")
            if places is not None and places.ndim == 2:
                counts = places[0, start:end] - places[0, start]
                if counts.tolist() != list(range(end - start)):
                    raise Wrong(f"positions of a document are {places[0, start:end].tolist()}")
            parts.append(part)
        return parts

    def _check_pairs(self, mask: Any, bounds: list[int]) -> None:
        """A mask over all pairs of tokens must let each see its own document alone."""
        if isinstance(mask, dict):
            mask = mask["full_attention"]
        if mask is None:
            return
        sees = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
        truth = torch.zeros_like(sees)
        for start, end in pairwise(bounds):
            truth[start:end, start:end] = True
        if not torch.equal(sees, truth):
            raise Wrong("a mask lets documents of a row see each other")

    def _rows(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        tokens = batch[self.name]
        rows = []
        for row in range(len(tokens)):
            part = {"packed": False}
            for name, value in batch.items():
                if (
                    isinstance(value, torch.Tensor)
                    and name not in self.kind.media
                    and value.ndim
                    and len(value) == len(tokens)
                ):
                    part[name] = value[row]
            rows.append(part)
        return rows

    def _sample(self, part: dict[str, Any]) -> tuple[int, bool]:
        tokens = part[self.name]
        start, end = self._real(tokens)
        mask = part.get("attention_mask")
        if mask is not None:
            real = torch.zeros(len(tokens), dtype=torch.bool)
            real[start:end] = True
            if not torch.equal(mask.bool(), real):
                raise Wrong(f"the mask is {mask.tolist()} where tokens are {tokens.tolist()}")
        elif end - start < len(tokens) and self.job.form in ("dict", "encoding", "row"):
            raise Wrong("padding without a mask")
        number = self.numbers.get(self._key(tokens[start:end]))
        own = end
        if number is None:
            number, own = self._before_blank(tokens, start, end)
        example = self.examples[number]
        counted = True
        for name, value in example.fields.items():
            if name in ("labels", "y"):
                counted = self._labels(part, example, (start, own), name)
            elif name in self.kind.media:
                continue  # of the whole batch
            elif not torch.equal(part[name][start:own], value):
                raise Wrong(f"field {name!r} of sample {number} is {part[name].tolist()}")
        return number, counted

    def _real(self, tokens: torch.Tensor) -> tuple[int, int]:
        """Where the tokens are that are no padding."""
        if not self.kind.padded:
            return 0, len(tokens)
        real = (tokens != PAD).nonzero().flatten().tolist()
        return (real[0], real[-1] + 1) if real else (0, 0)

    def _before_blank(self, tokens: torch.Tensor, start: int, end: int) -> tuple[int, int]:
        """A sample that a blank image was appended to, and where it ends."""
        if self.kind.media:
            for own in range(end - 1, start, -1):
                number = self.numbers.get(self._key(tokens[start:own]))
                blank = self._key(tokens[own:end])
                if number is not None and blank == (self.blank or blank):
                    self.blank = blank
                    return number, own
        raise Wrong(f"no sample has the tokens {tokens.tolist()}")

    def _labels(
        self, part: dict[str, Any], example: Example, real: tuple[int, int], name: str
    ) -> bool:
        truth = example.fields[name]
        found = next((part[n] for n in (name, "label", "label_ids") if n in part), None)
        if found is None:
            if self.job.labels == "none":
                return True
            raise Wrong(f"labels are missing: {sorted(part)}")
        if bool((found == -100).all()):
            return not example.weight
        if self.kind.labeled == "own":
            known = (found != -100).nonzero().flatten().tolist()
            found = found[known[0] : known[-1] + 1]
        elif self.kind.labeled == "token":
            start, end = real
            if bool((torch.cat([found[:start], found[end:]]) != -100).any()):
                raise Wrong(f"padding has labels: {found.tolist()}")
            found = found[start:end].clone()
            if self.job.reads == "causal" and found[0] == -100:
                found[0] = truth[0]  # nothing predicts it
        if found.shape != truth.shape or not torch.equal(found.double(), truth.double()):
            raise Wrong(f"labels are {found.tolist()} and should be {truth.tolist()}")
        return True

    def _check_media(self, batch: dict[str, Any], numbers: list[int]) -> None:
        for name in self.kind.media:
            fields = [self.examples[n].fields for n in numbers]
            truth = [each[name] for each in fields if name in each]
            if not truth:
                continue  # none, or a blank
            found = batch[name]
            place = 0
            for each in truth:
                part = found[place : place + len(each)]
                place += len(each)
                own = part[tuple(slice(size) for size in each.shape)]
                if own.shape != each.shape or not torch.equal(own.to(each.dtype), each):
                    raise Wrong(f"{name} differs in samples {numbers}")
                if int(torch.count_nonzero(part)) != int(torch.count_nonzero(own)):
                    raise Wrong(f"padding of {name} is not 0 in samples {numbers}")
            if place != len(found):
                raise Wrong(f"{name} has {len(found)} entries and should have {place}")

    def _key(self, tokens: torch.Tensor) -> bytes:
        return tokens.to(torch.float64).numpy().tobytes()


def _bounds(batch: dict[str, Any]) -> list[int] | None:
    """Where the documents of a packed row begin and end."""
    for name in ("cu_seqlens", "cu_seq_lens_q"):
        if name in batch:
            return batch[name].tolist()
    places = batch.get("position_ids")
    if places is None:
        return None
    while places.ndim > 1:
        places = places[0]
    begins = (places.diff() <= 0).nonzero().flatten() + 1
    return [0, *begins.tolist(), len(places)]
