"""torchtitan: a data loader for its Trainer, in place of the one in the trainer's config.

    config.dataloader = EvenDataLoader.Config(make_dataset=make_dataset)

torchtitan takes ``global_batch_size / (local_batch_size x ranks)`` micro-batches for a step, sums
their losses, and divides by the labels of all ranks that are not -100. So no loss is scaled here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.distributed as dist

from evenstep.batch.formats.train_loops import to_torchtitan
from evenstep.batch.measure import length_of
from evenstep.errors import SampleError
from evenstep.integrations.rank_values import of_all_ranks
from evenstep.integrations.releases import check_hooks, importing
from evenstep.integrations.update_stream import UpdateStream
from evenstep.plan.policies.even.even import Even
from evenstep.plan.policy import Policy

with importing("torchtitan", "torchtitan"):
    import tyro
    from torchtitan.components.dataloader import BaseDataLoader

check_hooks("torchtitan", BaseDataLoader, "Config", "state_dict", "load_state_dict")


class EvenDataLoader(BaseDataLoader):
    """Batches of equal cost on all data-parallel ranks; each sample once an epoch.

    Ranks of one data-parallel rank, as tensor and pipeline parallelism have them, each prepare the
    same batches. A checkpoint resumes on any number of data-parallel ranks.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        make_dataset: Annotated[Callable[[Any, int], Any], tyro.conf.Suppress]
        """(tokenizer, tokens that a sample may have) -> dataset of mappings with ``input_ids`` and,
        aligned with them, ``labels``, which are shifted here."""
        policy: Annotated[Policy | None, tyro.conf.Suppress] = None
        """One that packs; an `Even` does so in any case. None is an `Even` of as many tokens as
        torchtitan's own batches have: ``local_batch_size x seq_len``."""
        micro_batches_per_step: int = 1
        """As torchtitan takes them: ``global_batch_size / (local_batch_size x ranks)``, times those
        of a pipeline."""
        epochs: int = 0
        """Training ends after as many, or after ``training.steps``; 0 is without end."""
        seed: int = 0
        num_workers: int = 0
        options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
        """Other arguments of `evenstep.DataLoader`."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **others: Any,
    ) -> None:
        """What torchtitan's Trainer calls.

        Raises:
            ConfigurationError: an argument is wrong.
        """
        self._longest = seq_len
        self.stream = UpdateStream(
            config.make_dataset(tokenizer, seq_len),
            config.policy or Even(local_batch_size * seq_len),
            config.micro_batches_per_step,
            group=_data_parallel_group(dp_rank, dp_world_size),
            epochs=config.epochs,
            seed=config.seed,
            num_workers=config.num_workers,
            **{"length_fn": LengthWithin(seq_len), **config.options},
        )
        self.loader = self.stream.loader

    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        """Yields (arguments of the model, labels of the next tokens)."""
        for batch in self.stream:
            inputs, labels = to_torchtitan(batch)
            # Only padding goes further, which the model has no rotation for.
            inputs["positions"] = inputs["positions"].clamp(max=self._longest - 1)
            yield inputs, labels

    def state_dict(self) -> dict[str, Any]:
        """See `UpdateStream.state_dict`."""
        return self.stream.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See `UpdateStream.load_state_dict`. An empty state, which torchtitan loads where a
        checkpoint has only the model, changes nothing."""
        if state_dict:
            self.stream.load_state_dict(state_dict)

    def close(self) -> None:
        """Ends the loader's processes."""
        self.loader.close()


@dataclass(frozen=True)
class LengthWithin:
    """The length of a sample that the model has positions for: a `length_fn`."""

    longest: int

    def __call__(self, sample: Any) -> int:
        """
        Raises:
            SampleError: it is longer.
        """
        length = length_of(sample)
        if length > self.longest:
            raise SampleError(
                f"it has {length:,} tokens, and the model has positions for {self.longest:,}; cut "
                "it in make_dataset, whose second argument says how long it may be"
            )
        return length


def _data_parallel_group(dp_rank: int, dp_world_size: int) -> dist.ProcessGroup | None:
    """The n-th process of every data-parallel rank, this one among them; None is all processes.
    All processes call it."""
    if not dist.is_initialized() or dist.get_world_size() == dp_world_size:
        return None
    of_process = of_all_ranks(dp_rank)
    peers = [
        [process for process, rank in enumerate(of_process) if rank == one]
        for one in range(dp_world_size)
    ]
    mine = next(group for group in zip(*peers, strict=True) if dist.get_rank() in group)
    return dist.new_group(list(mine), backend="gloo", use_local_synchronization=True)
