"""Entries of the chapter on OVERLORD."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry
from benchmarks.papers.overlord.text import ALGORITHM_2, FIGURE_12, FIGURE_14, FIGURES_4_5, HEAD

CHAPTER = Chapter(
    name="overlord",
    page="overlord.md",
    title="OVERLORD",
    head=HEAD,
    entries=[
        Entry(
            key="figure-2",
            item="Figure 2",
            title="token skew of texts and images",
            state="reproduced",
            differs="`coyo-text` is fitted to the three printed numbers; `navit_data` is not "
            "public.",
            text="On [a page of its own](../service-figures.md#beside-the-paper).",
            command="python -m benchmarks.service.imbalance --data FOLDER",
        ),
        Entry(
            key="figure-3",
            item="Figure 3",
            title="imbalance of micro-batches as samples come",
            state="predicted",
            differs="Corpora are others, and step costs are those of a model.",
            text="On [a page of its own](../service-figures.md).",
            command="python -m benchmarks.service.imbalance --data FOLDER",
        ),
        Entry(
            key="figures-4-5",
            item="Figures 4, 5",
            title="memory and time of sources, and memory by sources and workers",
            state="smaller",
            differs="Text of public corpora in local files, where they have images and video in "
            "HDFS.",
            text=FIGURES_4_5,
            run="benchmarks.papers.overlord.sources:figures_4_5",
            slow=True,
        ),
        Entry(
            key="section-3",
            item="Section 3, Figure 6",
            title="the roles, and the way of a step",
            state="reproduced",
            differs="Data Constructors pull plans from the planner and tell loaders what to "
            "stage, where the paper's loaders ask the planner.",
            text="[The service](../service.md).",
            command="pytest tests/service/test_service_local.py "
            "tests/service/test_service_delivery.py",
        ),
        Entry(
            key="section-4",
            item="Section 4, Figures 8 and 9",
            title="graph, tree of clients and primitives",
            state="reproduced",
            differs="`balance` takes memory as a limit, not as a cost, by `DGraph.memory`.",
            text="[Strategies](../strategies.md); `mix`, `distribute`, `cost`, `memory`, "
            "`balance`, `broadcast_at`, `plan`, and `plan_raw`, `loader_do_plan`, "
            "`constructor_do_plan`, `summary_buffer` below them.",
            command="pytest tests/strategy",
        ),
        Entry(
            key="algorithm-1",
            item="Algorithm 1",
            title="micro-batches by greedy bin packing, dealt to buckets",
            state="reproduced",
            differs="Nothing differs.",
            text="`llm_balance`, against the listing written out in Python.",
            command="pytest tests/strategy/test_paper_strategies.py",
        ),
        Entry(
            key="algorithm-2",
            item="Algorithm 2",
            title="single images to clients",
            state="predicted",
            differs="evenstep keeps the images of a sample together; apart is an option.",
            text=ALGORITHM_2,
            run="benchmarks.papers.overlord.single_images:algorithm_2",
            slow=True,
        ),
        Entry(
            key="section-5-1",
            item="Section 5.1, Figure 10",
            title="sources divided among loaders by what they cost",
            state="reproduced",
            differs="The three steps as printed are one of the layouts compared; evenstep "
            "packs by memory and time together.",
            text="[Sizing a service](../service-sizing.md).",
            command="python -m benchmarks.service.partitioning",
        ),
        Entry(
            key="section-5-2",
            item="Section 5.2",
            title="loaders that follow the weights",
            state="reproduced",
            differs="A forecast of the schedule is used where there is one, not a moving "
            "average alone.",
            text="[Sizing a service](../service-sizing.md#weights-that-move).",
            command="pytest tests/strategy/loaders/test_loader_scaling.py "
            "tests/service/test_changing_loaders.py",
        ),
        Entry(
            key="section-6-2",
            item="Section 6.2",
            title="sidecars, and broadcasting from one rank",
            state="smaller",
            differs="Manifests are checked, and two hosts are network namespaces of one "
            "machine; there is no cluster here.",
            text="[Deploying the service](../deploy.md).",
            command="pytest tests/test_deploy.py tests/service/test_broadcast.py",
        ),
        Entry(
            key="table-1",
            item="Table 1",
            title="the five models",
            state="reproduced",
            differs="Widths of feed-forward networks, and the experts of tMoE, are not printed; "
            "they are those that make models of the size in the name.",
            run="benchmarks.papers.overlord.end_to_end:table_1",
        ),
        Entry(
            key="figure-12",
            item="Figure 12",
            title="gain in throughput by model and context",
            state="predicted",
            differs="Operations are balanced, no time is measured; images are as large as the "
            "context allows, of which the paper says nothing.",
            text=FIGURE_12,
            run="benchmarks.papers.overlord.end_to_end:figure_12",
        ),
        Entry(
            key="figure-13",
            item="Figure 13",
            title="host memory with sources divided among loaders",
            state="smaller",
            differs="120 sources on one machine: 4.2 times less memory than one loader on every "
            "rank, theirs 3.6.",
            command="python -m benchmarks.service.memory",
        ),
        Entry(
            key="figure-14",
            item="Figure 14",
            title="with and without Data Constructors",
            state="smaller",
            differs="Roles are real, clients are stubs, and all run in one process: work at each "
            "role is measured, a network is not.",
            text=FIGURE_14,
            run="benchmarks.papers.overlord.constructors:figure_14",
            slow=True,
        ),
        Entry(
            key="figure-15",
            item="Section 6.1, Figure 15",
            title="roles that die while training goes on",
            state="smaller",
            differs="Tens of steps on one machine; a loader that dies is played again by "
            "another process.",
            text="[Deploying the service](../deploy.md#what-dies-and-what-happens).",
            command="pytest tests/service/test_ray_deaths.py tests/service/test_stored_planner.py",
        ),
        Entry(
            key="figure-16",
            item="Figure 16",
            title="production training on 4,096 GPUs",
            state="elsewhere",
            differs="It needs their cluster, model and data.",
        ),
    ],
)
