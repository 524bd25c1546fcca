"""Samples that are longer than a group may be, and what `too_long` makes of them: one choice for a
whole job, by lengths alone.

    error      the sample is refused by name, which ends the epoch
    skip       it is left out
    truncate   its first tokens stay, as many as a group may have
    split      it becomes as few pieces as possible, of equal length: no tail of a few tokens that
               attend to next to nothing. To the model a piece is a sample of its own
    alone      it is a group by itself, in which memory has room for up to ``Memory.longest`` tokens

Invariant: pieces of a sample do not overlap and come in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, TooLongError
from evenstep.plan.policy import Policy
from evenstep.plan.value_checks import check_at_least, check_one_of

TOO_LONG = ("error", "skip", "truncate", "split", "alone")


@dataclass(frozen=True)
class Pieces:
    """Pieces of samples; all three columns are [pieces] int64."""

    samples: Int64Array
    """Position of the sample that each piece is part of."""
    begins: Int64Array
    ends: Int64Array

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def lengths(self) -> Int64Array:
        """[pieces] tokens of each."""
        return self.ends - self.begins


def too_long(sample: str, length: int, limit: int) -> TooLongError:
    """The error for a sample longer than the `limit` of `Policy.max_length`."""
    return TooLongError(
        f"{sample} has {length:,} tokens, over max_tokens={limit:,}; raise max_tokens, or choose "
        'what becomes of such samples: too_long="skip", "truncate", "split" or "alone"'
    )


def pieces_of(lengths: Int64Array, limit: int, choice: str) -> Pieces:
    """What samples become, in order of arrival.

    Args:
        lengths: [samples] int64, each positive.
        limit: tokens of a sample that is not too long.
        choice: one of `TOO_LONG`.

    Raises:
        TooLongError: a sample is longer, with "error".
        ConfigurationError: `choice` is another.
    """
    check_at_least(1, limit=limit)
    check_one_of(TOO_LONG, too_long=choice)
    long = lengths > limit
    if choice == "error" and long.any():
        first = int(long.argmax())
        raise too_long(f"sample {first}", int(lengths[first]), limit)
    parts = -(-lengths // limit) if choice == "split" else np.ones_like(lengths)
    if choice == "skip":
        parts[long] = 0
    kept = np.minimum(lengths, limit) if choice == "truncate" else lengths
    samples = np.arange(len(lengths), dtype=np.int64).repeat(parts)  # [pieces]
    part = np.arange(len(samples)) - (parts.cumsum() - parts).repeat(parts)  # [pieces] from 0
    length, count = kept[samples], parts[samples]
    return Pieces(samples, part * length // count, (part + 1) * length // count)


def check_too_long(policy: Policy, choice: str, *, iterable: bool, longest: int | None) -> None:
    """
    Args:
        iterable: the dataset is, so that how many samples it has need not be known.
        longest: tokens of a sample that is a group by itself.

    Raises:
        ConfigurationError: the choice does not go with the policy, the dataset or `longest`.
    """
    check_one_of(TOO_LONG, too_long=choice)
    given, limit = f"too_long={choice!r}", policy.max_length
    if choice != "alone" and longest is not None:
        raise ConfigurationError(f'longest={longest} is for too_long="alone", and here is {given}')
    if choice == "error":
        return
    if limit is None:
        trains = ", which trains on longer samples alone" if policy.fits_memory else ""
        raise ConfigurationError(
            f"{given}, and no sample is too long for {policy.name}{trains}; leave it out, or give "
            "a policy with a number of max_tokens"
        )
    if choice == "split" and not iterable:
        raise ConfigurationError(
            f"{given}: how many samples a map-style dataset has must be known before they are "
            f"read; pass evenstep.SplitDocuments(dataset, {limit}, lengths=...), or an iterable "
            "dataset"
        )
    if choice == "alone" and policy.micro_batches > 1:
        raise ConfigurationError(
            f"{given}: {policy.name} balances its micro-batches with documents of up to "
            f"max_tokens={limit}; raise that, and leave context as it is"
        )
    if choice == "alone" and (longest is None or longest <= limit):
        raise ConfigurationError(
            f"{given} with longest={longest}: a sample of more than max_tokens={limit} takes more "
            "memory than any group; say how many tokens fit, memory=evenstep.Memory(longest=...), "
            f"more than {limit}"
        )
