"""A whole job in a loop: ranks with sources of known lengths, driven round by round by a policy.

Kept apart from the library's own driver, so that the contract of a policy is tested by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evenstep.plan import Plan, Policy, Proposal, Window


def images_of(patches: np.ndarray) -> dict[str, np.ndarray]:
    """Patches of samples whose images have 8 of them each, but for the last."""
    images = -(-patches // 8)
    pairs = (images - 1).clip(0) * 64 + (patches - (images - 1).clip(0) * 8) ** 2
    return {"patches": patches, "images": images, "patch_pairs": pairs}


@dataclass(frozen=True)
class Turn:
    """One rank in one round."""

    window: Window
    arrivals: np.ndarray
    """[samples] which sample of its source stands at each window position."""
    proposal: Proposal
    messages: np.ndarray
    plan: Plan

    @property
    def emitted(self) -> list[list[int]]:
        """Groups of arrival numbers."""
        groups = self.plan.groups
        return [self.arrivals[groups.group(g)].tolist() for g in range(len(groups))]

    @property
    def dropped(self) -> list[int]:
        return self.arrivals[self.plan.dropped].tolist()

    @property
    def steps(self) -> int:
        return len(self.plan.step_offsets) - 1


def play(
    policy: Policy,
    sources: list[list[int]],
    *,
    buffer_size: int,
    patches: list[list[int]] | None = None,
    late_end: bool = False,
    seed: int = 0,
    epoch: int = 0,
    accumulate: int = 1,
) -> Iterator[dict[int, Turn]]:
    """Runs an epoch; every round yields the turns of the ranks that still had samples.

    Args:
        policy: the same on all ranks.
        sources: lengths of each rank's samples, in order of arrival.
        buffer_size: what each rank may buffer.
        patches: vision patches of every sample, shaped like `sources`.
        late_end: a rank learns that its source has ended only when it asks for a sample too many.
        seed: seed of the epoch's orders.
        epoch: number of the epoch.
        accumulate: steps of an update.
    """
    lengths = [np.array(source, np.int64) for source in sources]
    counts = [np.array(p, np.int64) for p in patches] if patches else lengths
    held = [np.empty(0, np.int64) for _ in sources]
    ages = [np.empty(0, np.int64) for _ in sources]
    read, steps = [0] * len(sources), 0
    for number in range(sum(map(len, sources)) + 1):
        size = policy.window_size(buffer_size)
        proposals: dict[int, Proposal] = {}
        for rank, source in enumerate(lengths):
            new = np.arange(read[rank], min(len(source), read[rank] + size - len(held[rank])))
            asked = size - len(held[rank])
            read[rank] += len(new)
            held[rank] = np.concatenate([held[rank], new])
            ages[rank] = np.concatenate([ages[rank], np.zeros(len(new), np.int64)])
            ended = len(new) < asked if late_end else read[rank] == len(source)
            if len(held[rank]):
                proposals[rank] = policy.propose(
                    Window(
                        lengths=source[held[rank]],
                        ages=ages[rank].copy(),
                        **(images_of(counts[rank][held[rank]]) if policy.counts_patches else {}),
                        exhausted=ended,
                        seed=seed,
                        epoch=epoch,
                        round=number,
                        accumulate=accumulate,
                        step=steps,
                        ranks=len(sources),
                    )
                )
        if not proposals:
            return
        width = len(next(iter(proposals.values())).message)
        messages = np.zeros((len(sources), width), np.int64)
        for rank, proposal in proposals.items():
            messages[rank] = proposal.message
        turns = {}
        for rank, proposal in proposals.items():
            plan = policy.settle(proposal, messages, rank)
            turns[rank] = Turn(proposal.window, held[rank].copy(), proposal, messages, plan)
            stays = np.ones(len(held[rank]), bool)
            stays[plan.groups.members] = False
            stays[plan.dropped] = False
            held[rank], ages[rank] = held[rank][stays], ages[rank][stays] + 1
        steps += max(turn.steps for turn in turns.values())
        yield turns
    raise AssertionError("more rounds than samples: some round planned nothing")
