from __future__ import annotations

import re

import numpy as np
import pytest
from graph_world import Batches, Nothing, table
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.strategy import DGraph, LoadingPlan, mermaid
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.strategy.sample_table import SampleTable


def plan_of(lengths: list[int], dp: int = 2, **options: int) -> LoadingPlan:
    tree = ClientPlaceTree.of({"DP": dp, "TP": 2})
    images = [length % 2 * 5 for length in lengths]
    root = DGraph.of(Nothing(), tree, micro_batches=2, **options)
    main = root.mix(Batches([table(lengths, images)])).modality("text").distribute("DP").balance()
    encoder = root.modality("image").distribute("WORLD").balance()
    return main.broadcast_at("TP").plan(subplans={"encoder": encoder})


@given(st.lists(st.integers(1, 30), min_size=4, max_size=40), st.integers(1, 9))
def test_whatever_is_cut_the_numbers_on_the_arrows_add_up(lengths: list[int], most: int) -> None:
    plan = plan_of(lengths, max_tokens=60)
    text = mermaid(plan, most=most)
    into = [int(n) for n in re.findall(r"-->\|(\d+)\| drawn$", text, re.MULTILINE)]
    main = [int(n) for n in re.findall(r"drawn -->\|(\d+)\| p(?:\d+$|rest\[)", text, re.MULTILINE)]
    encoder = [int(n) for n in re.findall(r"drawn -->\|(\d+)\| pa0_", text)]
    carried = [int(n) for n in re.findall(r"drawn -\.->\|(\d+)\| carried", text)]
    assert sum(into) == len(plan)
    assert sum(main) + sum(carried) == len(plan)
    assert sum(encoder) == plan.subplans["encoder"].assignment.placed.sum()


def test_boxes_show_weights_micro_batches_costs_and_ranks() -> None:
    text = mermaid(plan_of([4, 2, 3, 1]))
    assert text.startswith("flowchart LR\n")
    assert '  s0[("a<br/>weight 0.5")] -->|2| drawn' in text
    assert '  subgraph p0["text, DP 0"]' in text
    assert '    p0m0["micro-batch 0<br/>1 sample<br/>cost 4"]' in text
    assert '  p1 --> p1r(["rank 2"])' in text
    assert '  subgraph pa0_0["encoder: image, WORLD 0"]' in text
    # Every node that an arrow leads to has a box.
    ids = set(re.findall(r"^ +(?:subgraph )?(\w+)[\[(]", text, re.MULTILINE))
    ids |= set(re.findall(r"--> (\w+)\(", text)) | {"carried"}
    assert set(re.findall(r"(?:-->|\|) (\w+)$", text, re.MULTILINE)) <= ids


def test_a_name_cannot_break_the_chart() -> None:
    samples = SampleTable(('a"]<b>&',), [0, 0], [0, 1], [0, 0], [0, 1], {"text": np.ones(2, int)})
    plan = DGraph.of(samples, ClientPlaceTree.of({"DP": 2})).distribute("DP").plan()
    assert 's0[("a#quot;]#lt;b>#amp;")] -->|2| drawn' in mermaid(plan)


def test_at_least_one_of_each_is_drawn() -> None:
    with pytest.raises(ConfigurationError, match="most=0 must be at least 1"):
        mermaid(plan_of([4, 2, 3, 1]), most=0)
