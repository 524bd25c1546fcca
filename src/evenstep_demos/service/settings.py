"""What a demo consists of: sources, a job for each run, and what ranks do with a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import evenstep.service as es
from evenstep.strategy.sample_table import SampleId
from evenstep_demos.service.delivery import Checked, check_delivery
from evenstep_demos.service.encode import tokens_of
from evenstep_demos.service.figures import planned_costs
from evenstep_demos.service.options import ServiceDemoOptions
from evenstep_demos.service.serving import ServedRun
from evenstep_demos.service.stored import StoredSources
from evenstep_demos.service.strategies import TEXT_RUNS, text_job
from evenstep_demos.service.texts import text_sources


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sources, jobs and trainer of a demo, made by `prepare`."""

    options: ServiceDemoOptions
    stored: StoredSources
    jobs: Mapping[str, es.Job]
    """By the name of each run, in the order in which they are made."""
    trainer: Callable[..., None]
    """See `serve_runs`."""
    transform: Callable[[Any], dict[str, Any]]
    """Turns a stored row into a sample."""

    def tokens(self, sample: SampleId) -> npt.NDArray[np.integer]:
        """[tokens] of a stored sample."""
        tokens: npt.NDArray[np.integer] = self.transform(self.stored.row(sample))["input_ids"]
        return tokens

    def costs(self, run: ServedRun) -> Mapping[str, npt.NDArray[np.float64]]:
        """By module, [steps, buckets] predicted cost."""
        if self.options.vision:
            from evenstep_demos.service.vision.account import vision_costs

            return vision_costs(run.plans, run.records)
        return {"backbone": planned_costs(run.plans)}

    def check(self, run: ServedRun) -> Checked:
        """Checks that the samples were delivered as planned.

        Raises:
            InvariantError: a sample was lost, doubled or damaged.
        """
        if self.options.vision:
            from evenstep_demos.service.vision.account import check_encoded

            check_encoded(run.plans, run.records)
        return check_delivery(run.plans, run.records, self.tokens)


def prepare(
    options: ServiceDemoOptions, progress: Callable[[int, int], None] | None = None
) -> Setting:
    """Makes the sources, unless an earlier run has left them, and the jobs.

    Args:
        progress: called with the number of sources written, and of all.

    Raises:
        ConfigurationError: the data cannot be used.
        ImportError: something of ``evenstep[demo,service]`` is not installed.
    """
    if options.vision:
        from evenstep_demos.service.vision.encode import pictured
        from evenstep_demos.service.vision.pictures import picture_sources
        from evenstep_demos.service.vision.strategies import VISION_RUNS, vision_job
        from evenstep_demos.service.vision.trainer import train_vision

        stored = picture_sources(options, progress)
        return Setting(
            options=options,
            stored=stored,
            jobs={name: vision_job(stored, options, name) for name in VISION_RUNS},
            trainer=train_vision,
            transform=pictured,
        )
    from evenstep_demos.service.trainer import train_text

    stored = text_sources(options, progress)
    return Setting(
        options=options,
        stored=stored,
        jobs={name: text_job(stored, options, name) for name in TEXT_RUNS},
        trainer=train_text,
        transform=tokens_of,
    )
