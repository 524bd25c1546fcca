"""A policy is one file, and a line in `POLICIES` for commands: nothing else has to know of it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

import evenstep
from documents import Documents
from evenstep.arrays import Int64Array
from evenstep.cli import main
from evenstep.cost import UNKNOWN_MODEL, Cost
from evenstep.errors import MismatchError
from evenstep.plan import Groups, Plan, Policy, Proposal, Window
from evenstep.plan.policies.by_name import NamedPolicy
from evenstep.testing import assert_exact_resume
from evenstep.tools.simulate.yardsticks import COMPARED


@dataclass(frozen=True)
class LastFirst(Policy):
    """Groups of the same number of samples, the last to arrive first."""

    batch_size: int
    cost: Cost = UNKNOWN_MODEL

    def propose(self, window: Window) -> Proposal:
        ends = np.append(np.arange(0, len(window), self.batch_size), len(window))
        groups = Groups(np.arange(len(window))[::-1].copy(), ends)
        return Proposal(np.array([len(groups)]), groups, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        counts = messages[:, 0]
        return Plan(proposal.groups.take(np.arange(counts[counts > 0].min())))


POLICY = LastFirst(4)


def loader(policy: Policy = POLICY, workers: int = 0) -> evenstep.DataLoader:
    memory = evenstep.Memory(buffer_size=16)
    return evenstep.DataLoader(Documents(50), policy=policy, num_workers=workers, memory=memory)


def test_a_loader_trains_by_it_and_resumes_exactly() -> None:
    batches = [step.indices for _, step in loader().steps()]
    assert batches[0] == (12, 11, 10, 9)
    assert sorted(index for batch in batches for index in batch) == list(range(50))
    assert [step.indices for _, step in loader(workers=1).steps()] == batches
    assert assert_exact_resume(loader, every=4) > 2
    state = loader().state_dict()
    with pytest.raises(MismatchError, match="saved with another policy"):
        loader(LastFirst(5)).load_state_dict(state)


def test_commands_know_it_by_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = NamedPolicy(LastFirst, "The last to arrive first.", ("batch_size",))
    monkeypatch.setitem(COMPARED, "last-first", made)  # type: ignore[index]
    shape = ["--lengths", "ultrachat", "--samples", "400", "--world-size", "2", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "last-first", "--batch-size", "4", *shape])
    assert not ended.value.code
    told = json.loads(capsys.readouterr().out)
    assert told["policy"] == "last-first"
    assert told["samples"] == 2 * 400  # of each rank
