from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from graph_world import Batches, Nothing, meshes, squares, table
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import TransformerCost
from evenstep.errors import ConfigurationError, SampleError
from evenstep.strategy import METHODS, DGraph, LoadingPlan, SampleTable, to_json
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.levels import LEVELS
from evenstep.strategy.mesh import DIVIDING_AXES, ClientPlaceTree

CAP = 60
TREE = ClientPlaceTree.of({"DP": 2})
TEXTS = st.lists(st.integers(1, CAP), max_size=60)


def keys(samples: SampleTable) -> list[tuple[int, int]]:
    return list(zip(samples.source.tolist(), samples.position.tolist()))


def check_plan(plan: LoadingPlan) -> None:
    """What every plan promises."""
    for column in (plan.assignment.bucket, plan.assignment.micro_batch, plan.assignment.order):
        assert ((column < 0) == ~plan.assignment.placed).all()
    for rows in np.split(plan.assignment.rows, plan.assignment.offsets[1:-1]):
        assert plan.assignment.order[rows].tolist() == list(range(len(rows)))
    delivered = [
        key
        for bucket in range(plan.buckets)
        for k in range(plan.micro_batches)
        for key in keys(plan.members(bucket, k))
    ]
    assert Counter(delivered + keys(plan.carried)) == Counter(keys(plan.samples))
    sizes = np.diff(plan.assignment.offsets)
    assert sizes.min() > 0
    assert plan.max_tokens is None or plan.assignment.sums(plan.tokens).max() <= plan.max_tokens
    assert plan.cost_after.sum() == pytest.approx(plan.costs[plan.assignment.placed].sum())
    assert plan.cost_before.sum() == pytest.approx(plan.cost_after.sum())
    assert bool(plan.notes) >= bool(len(plan.carried))


@given(
    TEXTS,
    meshes(),
    st.sampled_from(DIVIDING_AXES),
    st.integers(1, 3),
    st.sampled_from([*METHODS, None]),
    st.sampled_from(LEVELS),
    st.booleans(),
)
def test_every_sample_is_in_one_micro_batch_or_carried_and_no_rank_is_without_work(
    texts: list[int],
    tree: ClientPlaceTree,
    axis: str,
    micro_batches: int,
    method: str | None,
    level: str,
    capped: bool,
) -> None:
    def made() -> LoadingPlan:
        graph = DGraph.of(
            table(texts), tree, micro_batches=micro_batches, max_tokens=CAP if capped else None
        )
        graph = graph.distribute(axis).cost(squares)
        return (graph if method is None else graph.balance(method, level)).plan()

    buckets = tree.bucket_count(axis)
    if len(texts) < buckets:
        with pytest.raises(ConfigurationError, match=f"{len(texts)} samples cannot give each of"):
            made()
        return
    plan = made()
    check_plan(plan)
    assert to_json(made()) == to_json(plan)
    assert plan.buckets == buckets
    assert plan.micro_batches == min(micro_batches, len(texts) // buckets)
    assert capped or not len(plan.carried)


@given(
    st.lists(TEXTS.filter(lambda texts: len(texts) > 5), min_size=1, max_size=6),
    st.sampled_from([*METHODS, None]),
)
def test_what_is_carried_goes_first_in_the_next_step_and_nothing_is_lost(
    steps: list[list[int]], method: str | None
) -> None:
    tree = ClientPlaceTree.of({"DP": 2, "TP": 2})
    first = np.append(0, np.cumsum([len(texts) for texts in steps]))
    batches = Batches([table(texts, sources=1, first=f) for texts, f in zip(steps, first)])
    carried = None
    delivered: list[tuple[int, int]] = []
    for step in range(len(steps)):
        graph = DGraph.of(
            Nothing(), tree, step=step, micro_batches=2, max_tokens=CAP, carried=carried
        )
        graph = graph.mix(batches).distribute("DP")
        plan = (graph if method is None else graph.balance(method)).plan()
        check_plan(plan)
        waiting = [] if carried is None else keys(carried)
        assert plan.carried_in == len(waiting)
        assert keys(plan.samples) == waiting + keys(batches.tables[step])
        # Who waits was drawn after all who do not: none of two carried ones overtakes the other.
        assert keys(plan.carried) == keys(plan.samples)[len(plan) - len(plan.carried) :]
        carrying = f"{len(plan.carried)} of {len(plan)} samples"
        assert all(note.startswith(carrying) for note in plan.notes)
        delivered += keys(plan.samples[plan.assignment.placed])
        carried = plan.carried
    assert delivered + keys(carried) == [key for t in batches.tables for key in keys(t)]


@given(st.permutations(["modality", "distribute", "cost", "balance", "broadcast_at", "mix"]))
def test_primitives_may_come_in_any_order(order: list[str]) -> None:
    samples = table([9, 3, 5, 5, 1, 8, 2], [4, 0, 0, 2, 2, 2, 9])
    arguments = {
        "modality": ("image", "text"),
        "distribute": ("TP",),
        "cost": (squares,),
        "balance": ("karmarkar_karp",),
        "broadcast_at": ("TP",),
        "mix": (Batches([samples]),),
    }

    def made(names: list[str]) -> str:
        graph = DGraph.of(Nothing(), ClientPlaceTree.of({"DP": 2, "TP": 2}))
        for name in names:
            graph = getattr(graph, name)(*arguments[name])
        return to_json(graph.plan())

    assert made(order) == made(sorted(order))


def test_each_primitive_returns_a_new_graph_and_leaves_the_old_one() -> None:
    root = DGraph.of(
        table([9, 3, 5, 5, 1, 8], [4, 0, 0, 2, 2, 2]), ClientPlaceTree.of({"DP": 2, "TP": 2})
    )
    base = root.modality("text").distribute("DP").cost(squares)
    before = to_json(base.plan())
    for changed in (
        base.balance("greedy"),
        base.modality("text", "image"),
        base.distribute("TP"),
        base.broadcast_at("TP"),
        base.cost(lambda lengths: lengths),
    ):
        assert to_json(changed.plan()) != before
    assert to_json(base.plan()) == before


def test_a_subplan_is_of_the_samples_that_the_plan_draws_mixed_or_not() -> None:
    batches = Batches([table([3, 1, 2, 4], [1, 0, 5, 2])])
    root = DGraph.of(Nothing(), ClientPlaceTree.of({"DP": 2, "CP": 2}))
    backbone = root.modality("text").mix(batches).distribute("DP").balance()
    sampled = root.modality("image").mix(batches).distribute("WORLD").balance()
    unmixed = root.modality("image").distribute("WORLD").balance()
    plan = backbone.plan(subplans={"sampled": sampled, "unmixed": unmixed})
    assert plan.weights == {"a": 0.5, "b": 0.25, "c": 0.25}
    both = plan.subplans
    assert both["sampled"].assignment.bucket.tolist() == both["unmixed"].assignment.bucket.tolist()


def test_a_subplan_plans_what_the_plan_places_and_skips_who_has_none_of_it() -> None:
    tree = ClientPlaceTree.of({"PP": 2, "DP": 2})
    samples = table([50, 50, 50, 20], [30, 0, 10, 20], sources=1)
    root = DGraph.of(samples, tree, micro_batches=1, max_tokens=60)
    encoder = root.modality("image").distribute("WORLD").balance("greedy")
    plan = root.modality("text").distribute("DP").plan(subplans={"encoder": encoder})
    assert plan.carried.position.tolist() == [2, 3]
    sub = plan.subplans["encoder"]
    assert sub.assignment.placed.tolist() == [True, False, False, False]
    assert sub.samples is plan.samples
    assert (sub.buckets, sub.micro_batches, sub.max_tokens) == (4, 1, None)
    assert sub.delivery.fetching.tolist() == [0, 1, 2, 3]
    own = encoder.balance("greedy", micro_batches=3, max_tokens=30)
    sub = root.modality("text").distribute("DP").plan(subplans={"encoder": own}).subplans["encoder"]
    assert (sub.micro_batches, sub.max_tokens) == (3, 30)


def test_all_stages_fetch_at_world_and_the_ends_elsewhere_unless_told() -> None:
    tree = ClientPlaceTree.of({"PP": 3, "DP": 2, "TP": 2})
    graph = DGraph.of(table([1] * 12), tree)
    assert len(graph.distribute("WORLD").plan().delivery.fetching) == 12
    assert len(graph.distribute("DP").plan().delivery.fetching) == 8
    told = graph.distribute("DP").broadcast_at("TP", stages="first").plan()
    assert told.delivery.fetching.tolist() == [0, 2]


def plan_of(texts: list[int], *steps: tuple, **options: int) -> LoadingPlan:
    graph = DGraph.of(table(texts), TREE, **options).distribute("DP").cost(squares)
    for step in steps:
        graph = graph.balance(*step)
    return graph.plan()


def test_10_and_90_tokens_cost_8200_units_and_two_of_50_cost_5000() -> None:
    plan = plan_of([10, 90, 50, 50], ("greedy",))
    assert plan.cost_before.ravel().tolist() == [8200, 5000]
    assert plan.imbalance_before == 8200 / 6600
    assert sorted(plan.cost_after.ravel().tolist()) == [5100, 8100]


def micro_batches(plan: LoadingPlan) -> list[tuple[int, ...]]:
    """The samples of all micro-batches, by their lengths."""
    return [
        tuple(plan.members(bucket, k).lengths["text"].tolist())
        for bucket in range(plan.buckets)
        for k in range(plan.micro_batches)
    ]


def test_inter_deals_out_micro_batches_as_they_are_and_intra_makes_them() -> None:
    texts, options = [1, 9, 8, 2, 3, 7, 6, 4], {"micro_batches": 2}
    arrived = plan_of(texts, **options)
    assert micro_batches(arrived) == [(1, 9), (3, 7), (8, 2), (6, 4)]
    inter = plan_of(texts, ("greedy", "inter"), **options)
    assert sorted(micro_batches(inter)) == sorted(micro_batches(arrived))
    assert inter.cost_after.tolist() == [[82, 52], [68, 58]]
    intra = plan_of(texts, ("greedy", "intra"), **options)
    # Bins in the order made, to the buckets in turn, the costliest sample first.
    assert micro_batches(intra) == [(9,), (7, 3), (8,), (6, 4, 2, 1)]
    apart = plan_of(texts, ("greedy", "intra"), ("greedy", "inter"), **options)
    assert micro_batches(apart) == [(9,), (6, 4, 2, 1), (8,), (7, 3)]
    assert apart.methods == {"intra": "greedy", "inter": "greedy"}


def test_both_levels_together_make_up_for_a_sample_that_is_a_micro_batch_of_its_own() -> None:
    texts, options = [9, 4, 4, 4, 4, 4, 4, 3], {"micro_batches": 2}
    apart = plan_of(texts, ("greedy", "intra"), ("greedy", "inter"), **options)
    assert apart.cost_after.tolist() == [[81, 32], [41, 32]]
    together = plan_of(texts, ("greedy", "both"), **options)
    assert together.cost_after.tolist() == [[81, 9], [48, 48]]
    assert together.methods == {"both": "greedy"}
    # The micro-batch of its own leaves no room under a cap, so the levels come apart.
    capped = plan_of(texts, ("greedy", "both"), max_tokens=9, **options)
    assert sorted(capped.assignment.sums(capped.tokens).ravel().tolist()) == [8, 8, 8, 9]
    assert len(capped.carried) == 1


def test_a_cost_of_evenstep_is_asked_for_groups_of_one_and_without_one_tokens_count() -> None:
    cost = TransformerCost(layers=2, hidden_size=8, heads=2, ffn_size=16)
    graph = DGraph.of(table([3, 5]), TREE).distribute("DP")
    assert graph.plan().costs.tolist() == [3, 5]
    plan = graph.cost(cost).plan()
    assert plan.costs.tolist() == [cost.per_token * n + cost.per_pair * n * n for n in (3, 5)]
    assert plan.costs.dtype == np.float64


def test_too_few_samples_make_fewer_micro_batches_and_the_plan_says_so() -> None:
    plan = plan_of([1, 2, 3, 4, 5], micro_batches=4)
    assert plan.micro_batches == 2
    assert plan.notes == (
        "2 micro-batches in each bucket instead of 4: there are only 5 samples for 2 buckets",
    )


SAMPLES = table([3, 5, 2], [1, 0, 2])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g: g.modality("video"), "modality 'video' is unknown: samples have .* text, image"),
        (lambda g: g.distribute("DP").plan(), r"call modality\(name\): samples have lengths of"),
        (lambda g: g.modality("text").plan(), r"not distributed: call distribute\(axis\)"),
        (lambda g: g.distribute("EP"), "axis='EP' must be one of"),
        (lambda g: g.distribute("PP"), "axis='PP' divides nothing"),
        (lambda g: g.balance("best"), "method='best' must be one of greedy, karmarkar_karp"),
        (lambda g: g.balance(level="all"), "level='all' must be one of"),
        (lambda g: g.balance(max_tokens=0), "max_tokens=0 must be at least 1"),
        (lambda g: g.cost(3), "cost=3 must be a function"),
        (lambda g: g.broadcast_at("WORLD"), "broadcast_at='WORLD' must be one of"),
        (lambda g: g.broadcast_at("TP", stages="last"), "stages='last' must be one of"),
        (
            lambda g: g.mix({"a": 1.0}),
            r"mix\(dict\) has no mixture to draw from: pass DGraph.of a mixture=",
        ),
        (lambda g: g.mix(Batches([SAMPLES])).mix(Batches([SAMPLES])), "mix was called before"),
    ],
)
def test_misuse_is_refused_where_it_is_written(call, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call(DGraph.of(SAMPLES, TREE))


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda lengths: lengths[:1], "cost function <lambda> gave int64 of shape"),
        (lambda lengths: ["a"] * len(lengths), "cost function <lambda> gave <U1"),
        (lambda lengths: lengths - 3.0, "gave -1.0 for a length of 2"),
        (lambda lengths: lengths * np.inf, "gave inf for a length of 3"),
    ],
)
def test_a_cost_function_must_give_a_cost_for_each(fn, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        DGraph.of(SAMPLES, TREE).modality("text").distribute("DP").cost(fn).plan()


def test_numbers_of_a_step_and_lengths_of_samples_are_checked() -> None:
    for options in ({"micro_batches": 0}, {"step": -1}):
        ((name, value),) = options.items()
        with pytest.raises(ConfigurationError, match=f"{name}={value} must be at least"):
            DGraph.of(SAMPLES, TREE, **options)
    with pytest.raises(ConfigurationError, match=r"no samples are drawn: call mix\(schedule\)"):
        DGraph.of(Nothing(), TREE).distribute("DP").plan()
    graph = DGraph.of(SAMPLES, TREE, max_tokens=4).distribute("DP")
    with pytest.raises(SampleError, match=r"sample b\[0\]\[0\] has no image; name all modalities"):
        graph.modality("image").plan()
    with pytest.raises(SampleError, match=r"sample b\[0\]\[0\] has 5 tokens of text, over max_tok"):
        graph.modality("text").plan()


def test_subplans_of_other_samples_or_without_room_are_refused() -> None:
    text = DGraph.of(SAMPLES, TREE).modality("text").distribute("DP")
    mixed = DGraph.of(Nothing(), TREE)
    main = mixed.mix(Batches([SAMPLES])).modality("text").distribute("DP")
    full = DGraph.of(table([1, 1, 1], [2, 2, 2]), TREE).modality("text").distribute("DP")
    other = DGraph.of(SAMPLES, TREE).modality("image").distribute("DP")
    redrawn = mixed.mix(Batches([SAMPLES[1:]])).modality("image").distribute("DP")
    tight = text.modality("image").balance(max_tokens=1)
    narrow = full.modality("image").balance(max_tokens=3)
    for graph, sub, words in (
        (text, other, "subplan 'e' is of another graph"),
        (main, redrawn, "subplan 'e' was mixed from other samples"),
        (text, tight, "2 tokens of image, over max_tokens=1 of subplan 'e'"),
        (full, narrow, "1 of 3 samples, 2 tokens, find no room"),
        (main, mixed.modality("image"), "samples of subplan 'e' are not distributed"),
    ):
        with pytest.raises((ConfigurationError, SampleError), match=words):
            graph.plan(subplans={"e": sub})


# What a plan holds


def test_members_are_in_order_and_bounds_are_checked() -> None:
    none = -1
    assignment = Assignment.of(
        [1, 0, none, 1, 1], [0, 1, none, 1, 0], [1, 0, none, 0, 0], buckets=2, micro_batches=2
    )
    assert assignment.members(1, 0).tolist() == [4, 0]
    assert assignment.members(0, 0).tolist() == []
    assert assignment.rows.tolist() == [1, 4, 0, 3]
    assert assignment.sums(np.array([1, 2, 4, 8, 16])).tolist() == [[0, 2], [17, 8]]
    for wrong in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(ConfigurationError, match="must be from 0 to 1"):
            assignment.members(*wrong)


def test_imbalance_of_nothing_to_do_is_one() -> None:
    plan = DGraph.of(table([1, 2]), TREE).distribute("DP").plan()
    plan = replace(plan, costs=np.zeros(2, np.int64))
    assert plan.imbalance == plan.imbalance_before == 1.0


def test_a_plan_travels_without_what_was_worked_out_from_it() -> None:
    plan = DGraph.of(table([3, 1, 2, 9] * 50), TREE).distribute("DP").plan()
    before = len(pickle.dumps(plan))
    _ = plan.tokens, plan.cost_before, plan.assignment.rows, plan.delivery
    data = pickle.dumps(plan)
    assert len(data) <= before
    assert np.array_equal(pickle.loads(data).cost_before, plan.cost_before)
