"""`Blanks`: a blank for each of a rank's groups that has no image, in jobs of several ranks."""

from __future__ import annotations

import logging
from typing import Any

from evenstep.batch.blank import Blank, towers_of
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.pack import PackCollator
from evenstep.loader.batcher.spec import LoaderSpec

logger = logging.getLogger("evenstep")


class Blanks:
    """Adds the loader's blank. Without one, says so once a group lacks what others have, since the
    ranks then wait for each other without a word."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._rank = spec.rank
        several = spec.world_size > 1
        self._blank = spec.blank if several and isinstance(spec.blank, Blank) else None
        self._warns = several and spec.blank is None
        self._media = getattr(spec.collate_fn, "media_fields", MEDIA_FIELDS)
        self._packed = spec.policy.packed or isinstance(spec.collate_fn, PackCollator)
        self._seen: list[set[str]] = []

    def added_to(self, samples: list[Any]) -> list[Any]:
        """
        Raises:
            CollateError: see `Blank.added_to`.
        """
        if self._blank is not None:
            return self._blank.added_to(samples, packed=self._packed)
        if self._warns:
            self._note({tower for sample in samples for tower in towers_of(sample, self._media)})
        return samples

    def _note(self, towers: set[str]) -> None:
        if towers not in self._seen:
            self._seen.append(towers)
        if len(self._seen) > 1:
            self._warns = False
            lacking = self._seen[0] ^ self._seen[1]
            logger.warning(
                "rank %d has batches with %s and batches without. Where DDP, FSDP or ZeRO-3 trains "
                "the encoder, ranks without may wait for ever for those with; give them a blank "
                "one, with evenstep.DataLoader(blank=processor) or a prepared sample that has "
                "one, or pass blank=False",
                self._rank,
                " and ".join(sorted(lacking)),
            )
