"""Entries of the chapter on WLB-LLM."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry
from benchmarks.papers.wlb.text import (
    FIGURE_1A,
    FIGURE_3,
    FIGURE_7,
    FIGURE_10,
    FIGURE_15,
    HEAD,
    LOSS,
    SOLVER,
    SWEEP,
    WLB_ROWS,
)

CHAPTER = Chapter(
    name="wlb",
    page="wlb-llm.md",
    title="WLB-LLM",
    head=HEAD,
    entries=[
        Entry(
            key="figures-1a-4a",
            item="Figures 1a, 4a",
            title="how unlike the GPUs of one job are",
            state="predicted",
            differs="One step in the model, of a model and documents that the paper does not name; "
            "theirs is a trace.",
            text=FIGURE_1A,
            run="benchmarks.papers.wlb.latency_spread:figures_1a_4a",
        ),
        Entry(
            key="figure-3",
            item="Figure 3",
            title="lengths, and where in a window long documents lie",
            state="reproduced",
            differs="Lengths are those of a distribution fitted to Table 2's first row.",
            text=FIGURE_3,
            run="benchmarks.papers.wlb.positions:figure_3",
        ),
        Entry(
            key="figure-5",
            item="Figure 5",
            title="how imbalance spreads through a pipeline",
            state="predicted",
            differs="Backward passes take twice the forward ones, and sends are counted.",
            text="`evenstep.plan.pipeline.schedule` builds the graph of passes of 1F1B, "
            "plain or interleaved, and `simulate` runs it; on plain 1F1B the largest "
            "micro-batch counts once for each stage.",
            command="pytest tests/plan/pipeline/test_schedule.py",
        ),
        Entry(
            key="figures-6-16",
            item="Figures 6, 16",
            title="held-out loss by the window of packing",
            state="smaller",
            differs="A model of 0.1 million parameters for 128 updates on code, theirs 550 million "
            "for 52,000.",
            text=LOSS,
            run="benchmarks.papers.wlb.packing_windows:figures_6_16",
            slow=True,
        ),
        Entry(
            key="figure-7",
            item="Figure 7",
            title="time of operations by the length of a document",
            state="smaller",
            differs="A CPU and an eighth of the width; on a machine with a GPU the same command "
            "measures a 7B layer there.",
            text=FIGURE_7,
            run="benchmarks.papers.wlb.operations:figure_7",
            slow=True,
        ),
        Entry(
            key="figure-10",
            item="Figure 10",
            title="attention kernel by number of queries",
            state="smaller",
            differs="A CPU has no tiles of 128 queries and no TMA, so its step at 128 is not here.",
            text=FIGURE_10,
            run="benchmarks.papers.wlb.operations:figure_10",
            slow=True,
        ),
        Entry(
            key="table-1",
            item="Table 1",
            title="models and ranks",
            state="reproduced",
            differs="GPUs of three of its rows are not the product of their ranks.",
            text="In code: `evenstep.tools.simulate.cluster_assumptions.TABLE_1`, by which the "
            "figures below are predicted.",
            command="python -m benchmarks.papers.wlb.figures",
        ),
        Entry(
            key="table-2",
            item="Table 2",
            title="how even micro-batches are under each way of packing",
            state="reproduced",
            differs="Documents are drawn from a distribution fitted to the first row.",
            text="On [a page of its own](../wlb-table2.md); the rows of WLB-LLM itself are next.",
            command="python -m benchmarks.papers.wlb.table2",
        ),
        Entry(
            key="section-4-2",
            item="Section 4.2",
            title="queues of outliers, and their thresholds",
            state="reproduced",
            differs="The paper gives no rule for thresholds; `auto_thresholds` computes them "
            "from lengths.",
            command="pytest tests/plan/packing/test_outliers.py tests/plan/packing/test_wlb.py",
        ),
        Entry(
            key="algorithm-1",
            item="Algorithm 1",
            title="Table 2's rows of WLB-LLM, to the letter",
            state="reproduced",
            differs="Neither the lengths from which documents wait nor the limit of a micro-batch "
            "are printed, and both decide.",
            text=WLB_ROWS,
            run="benchmarks.papers.wlb.queues:wlb_rows",
        ),
        Entry(
            key="solver",
            item="Equation 1",
            title="Table 2's rows of the solver, with the paper's time",
            state="reproduced",
            differs="HiGHS for their commercial solver; it seldom proves anything in this time.",
            text=SOLVER,
            run="benchmarks.papers.wlb.solver:solver_rows",
            slow=True,
        ),
        Entry(
            key="section-5-1",
            item="Section 5.1, Figure 9",
            title="per-document sharding without padding",
            state="reproduced",
            differs="What does not divide evenly stays in one piece for each rank, where the "
            "paper deals single tokens in turn; ranks have equally many tokens in "
            "both.",
            command="pytest tests/plan/sharding",
        ),
        Entry(
            key="section-5-3",
            item="Section 5.3, Figure 11",
            title="the sharding that is predicted to be faster, for each micro-batch",
            state="reproduced",
            differs="A hybrid of both is among the choices.",
            text="[Context parallelism](../context-parallelism.md) has the attention over ranks.",
            command="pytest tests/plan/sharding/test_adaptive.py "
            "tests/context_parallel/test_attention.py",
        ),
        Entry(
            key="figures-12-15",
            item="Figures 12 to 15",
            title="speedups of whole training jobs",
            state="predicted",
            differs="Step times are those of a model of costs.",
            text="On [a page of its own](../wlb-figures.md).",
            command="python -m benchmarks.papers.wlb.figures",
        ),
        Entry(
            key="assumptions",
            item="Figures 12, 13",
            title="which assumption keeps predictions below the paper's",
            state="predicted",
            differs="Communication that overlaps and a pipeline whose ranks wait more often than "
            "plain 1F1B explain all of it; neither is printed.",
            text=SWEEP,
            run="benchmarks.papers.wlb.sweep:sweep",
        ),
        Entry(
            key="figure-15",
            item="Figure 15",
            title="sharding of one layer, on real ranks",
            state="smaller",
            differs="Four CPU processes and a sixteenth of windows and width.",
            text=FIGURE_15,
            run="benchmarks.papers.wlb.sharded_layer:figure_15",
            slow=True,
        ),
    ],
)
