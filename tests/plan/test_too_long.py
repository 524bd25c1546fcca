"""What becomes of samples that are too long, by lengths alone: in every policy each sample or piece
comes once, and all ranks make equally many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenstep
import evenstep.tools.simulate.run as simulation
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.too_long import TOO_LONG, check_too_long, pieces_of

DOCUMENTS = st.lists(st.integers(1, 100), max_size=30).map(lambda v: np.array(v, np.int64))
LIMIT = 100
POLICIES = [
    evenstep.Even(LIMIT),
    evenstep.Even(LIMIT, target_tokens=40),
    evenstep.Even(LIMIT, sync="update"),
    evenstep.Even(LIMIT, packed=True),
    evenstep.Even(LIMIT, packed=True, sync="update"),
    evenstep.Even(LIMIT, max_images=9),
    evenstep.TokenBudget(LIMIT),
    evenstep.SequencePacking(LIMIT),
    evenstep.WorkloadPacking(80, micro_batches=2, max_tokens=LIMIT),
]


@given(DOCUMENTS, st.integers(1, 60))
def test_split_makes_the_fewest_and_most_equal_pieces_that_cover_every_token(
    lengths: np.ndarray, limit: int
) -> None:
    pieces = pieces_of(lengths, limit, "split")
    assert (pieces.lengths <= limit).all()
    for sample, length in enumerate(lengths.tolist()):
        mine = pieces.samples == sample
        begins, ends = pieces.begins[mine], pieces.ends[mine]
        assert begins[0] == 0
        assert ends[-1] == length
        assert (begins[1:] == ends[:-1]).all()
        assert len(begins) == -(-length // limit)
        assert np.ptp(ends - begins) <= 1
    assert (np.diff(pieces.samples) >= 0).all()


@given(DOCUMENTS, st.integers(1, 60))
def test_the_other_choices_keep_the_beginning_or_all_of_a_sample_or_leave_it_out(
    lengths: np.ndarray, limit: int
) -> None:
    every, short = list(range(len(lengths))), np.flatnonzero(lengths <= limit).tolist()
    kept = {"skip": short, "truncate": every, "alone": every}
    for choice, samples in kept.items():
        pieces = pieces_of(lengths, limit, choice)
        assert pieces.samples.tolist() == samples
        assert not pieces.begins.any()
        most = limit if choice == "truncate" else 100
        assert pieces.ends.tolist() == np.minimum(lengths[samples], most).tolist()
    if len(short) < len(lengths):
        first = int((lengths > limit).argmax())
        with pytest.raises(SampleError, match=f"sample {first} has {lengths[first]} tokens"):
            pieces_of(lengths, limit, "error")


@settings(max_examples=12)
@given(
    st.sampled_from(POLICIES),
    st.sampled_from(TOO_LONG[1:]),
    st.lists(st.integers(1, 150), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 10**6),
)
def test_in_every_policy_all_ranks_make_equal_steps_and_what_is_left_comes_once(
    policy: Any, choice: str, sizes: list[int], accumulate: int, seed: int
) -> None:
    if choice == "alone" and policy.micro_batches > 1:
        return  # refused
    draw = np.random.default_rng(seed)
    shards, identities, begin = [], [], 0
    for size in sizes:
        pieces = pieces_of(draw.geometric(0.02, size), LIMIT, choice)
        shards.append(pieces.lengths)
        identities.append(np.arange(begin, begin + len(pieces)))
        begin += len(pieces)
    if not begin:
        return
    if policy.counts_patches:
        shards = [np.stack([shard, shard * 0, shard * 0, shard * 0]) for shard in shards]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_check_lengths", lambda *given: None)  # refuses them in a plan
        epoch = simulation.run_epoch(
            policy, shards, accumulate=accumulate, seed=seed, identities=identities
        )
    assert len({len(rank.steps) for rank in epoch.ranks}) == 1
    seen: list[int] = []
    for rank, own in zip(epoch.ranks, epoch.identities):
        groups, _ = rank.groups()
        seen += own[groups.members].tolist()
        for number in range(len(groups)):
            lengths = rank.lengths[groups.group(number)]
            tokens = lengths.sum() if policy.packed else lengths.max() * len(lengths)
            assert tokens <= LIMIT or (choice == "alone" and len(lengths) == 1)
    assert sorted(seen) == list(range(begin))


@pytest.mark.parametrize(
    ("choice", "policy", "longest", "said"),
    [
        ("drop", evenstep.Even(8), None, "too_long='drop' must be one of error, skip, truncate"),
        ("skip", evenstep.FixedBatch(8), None, "no sample is too long for fixed-batch"),
        ("skip", evenstep.Even("auto"), None, "even, which trains on longer samples alone"),
        ("split", evenstep.Even(8), None, r"SplitDocuments\(dataset, 8, lengths="),
        ("alone", evenstep.Even(8), None, r"Memory\(longest=...\), more than 8"),
        ("alone", evenstep.Even(8), 8, "longest=8: a sample of more than max_tokens=8"),
        ("alone", POLICIES[-1], 200, "raise that, and leave context as it is"),
        ("skip", evenstep.Even(8), 9, 'longest=9 is for too_long="alone"'),
    ],
)
def test_what_cannot_be_had_is_refused(choice: str, policy: Any, longest: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_too_long(policy, choice, iterable=False, longest=longest)
