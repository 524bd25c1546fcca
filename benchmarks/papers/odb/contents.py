"""Entries of the ODB paper, in its order."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry
from benchmarks.papers.odb import text
from benchmarks.papers.odb.paper import CELLS
from benchmarks.papers.odb.shapes import drifting

_HERE = "benchmarks.papers.odb"


def _tested(key: str, item: str, title: str, differs: str, tests: str) -> Entry:
    return Entry(
        key=key,
        item=item,
        title=title,
        state="reproduced",
        differs=differs,
        command=f"python -m pytest {tests}",
        text=getattr(text, key.upper().replace("-", "_"), ""),
    )


def _ran(
    key: str,
    item: str,
    title: str,
    run: str,
    differs: str,
    *,
    state: str = "reproduced",
    **more: bool,
) -> Entry:
    return Entry(
        key=key,
        item=item,
        title=title,
        state=state,  # type: ignore[arg-type]
        differs=differs,
        run=f"{_HERE}.{run}",
        text=getattr(text, key.upper().replace("-", "_"), ""),
        **more,
    )


def _not_here(key: str, item: str, title: str, differs: str) -> Entry:
    return Entry(key=key, item=item, title=title, state="elsewhere", differs=differs)


_MODELS = "It needs Qwen3-VL and eight or sixteen H20 GPUs"
_NO_DIFFERENCE = "Nothing differs."

CHAPTER = Chapter(
    name="odb",
    page="odb.md",
    title="ODB, online dynamic batching",
    head=text.HEAD,
    entries=[
        _tested(
            "figure-1",
            "Figure 1, section 2.1",
            "lengths are seen, groups formed and ranks aligned behind the workers",
            "The batcher is a process, as there; ranks exchange twice a round instead of once.",
            "tests/protocol/test_rank_protocol.py",
        ),
        _tested(
            "eq-1",
            "Equation 1, Appendix D",
            "groups by a threshold that is carried over",
            _NO_DIFFERENCE,
            "tests/plan/groups/test_token_budget_groups.py",
        ),
        _tested(
            "eq-3",
            "Equation 3, Algorithm 1",
            "all ranks get equally many groups: split, and overflow that goes back",
            "Groups that were sent back often are kept first, and the capacity is an option, "
            "`max_steps_per_round`.",
            "tests/plan/groups/test_alignment.py",
        ),
        _tested(
            "eq-2",
            "Equation 2, Appendix B",
            "scaled losses give the gradient of one batch",
            "Supervised tokens are counted where the paper counts those of the input.",
            "tests/batch/test_loss_scale.py tests/batch/test_gradient_equality.py",
        ),
        _tested(
            "theorem-1",
            "Theorem 1",
            "join: every sample is trained on",
            "All ranks make equally many steps, so no context that joins them is needed.",
            "tests/scenarios/test_coverage.py",
        ),
        _tested(
            "theorem-2",
            "Theorem 2",
            "non-join: epochs are chained until N samples have come",
            "The last update is never cut, so the overshoot is below an update instead of a step.",
            "tests/loader/test_quota.py tests/scenarios/test_sample_quota.py",
        ),
        _ran(
            "corollary-1",
            "Corollary 1, Appendix I",
            "no quota is missed on six synthetic distributions",
            "audits:corollary_1",
            "The paper prints neither budget nor buffer, nor what is short and long.",
        ),
        _tested(
            "theorems-3-4",
            "Theorems 3 and 4, Lemmas 1 and 3",
            "an epoch ends, in a bounded number of rounds, without a deadlock",
            _NO_DIFFERENCE,
            "tests/protocol/test_rank_protocol.py tests/protocol/model",
        ),
        _not_here(
            "table-1",
            "Table 1",
            "throughput, score and validation loss, full fine-tuning",
            f"{_MODELS}; its shapes are Tables 13 and 14, and Figure 2b predicts its speedups.",
        ),
        _ran(
            "sorted",
            "Table 1, Sorted",
            "batches of equally many samples in order of length, online and offline",
            "baselines:sorted_rows",
            "The model counts tokens, and small batches do not fill a GPU.",
            state="predicted",
        ),
        _ran(
            "packing",
            "Table 1, Packing",
            "sequences of UltraChat as Hugging Face and LLaMA-Factory cut them",
            "baselines:packing",
            "The paper does not say which of the two it used; both come within 2 % of it.",
            state="predicted",
        ),
        _ran(
            "figure-2a",
            "Figure 2a",
            "padding and throughput by batch size, ShareGPT4o",
            "sweeps:figure_2a",
            "Throughput is predicted from tokens alone.",
            state="predicted",
        ),
        _ran(
            "figure-2b",
            "Figure 2b, equation 5",
            "speedup and coefficient of variation",
            "sweeps:figure_2b",
            "MM-Mix gains from short samples that leave a GPU idle, which a count of tokens does "
            "not see.",
            state="predicted",
        ),
        _ran(
            "table-2",
            "Table 2",
            "the token budget, swept",
            "sweeps:table_2",
            "Small budgets do not fill a GPU, and large ones its memory, which a count of tokens "
            "does not see.",
            state="predicted",
        ),
        _ran(
            "table-3",
            "Table 3",
            "what the trainer waits for, by depth",
            "waits:table_3",
            "A trainer that sleeps stands for the GPU, and evenstep's knobs are others.",
            state="smaller",
            slow=True,
        ),
        _ran(
            "table-4",
            "Table 4, Lemma 4",
            "what may be left when an epoch stops",
            "endings:table_4",
            "The bound is the same; ranks that know each other's rest leave less.",
            slow=True,
        ),
        _ran("table-5", "Table 5", "every sample once", "endings:table_5", _NO_DIFFERENCE),
        _tested(
            "figure-3",
            "Figure 3",
            "the state machine",
            "Rounds in which nothing is emitted are part of FILLING, and the end is agreed on.",
            "tests/protocol/test_rank_protocol.py",
        ),
        _ran(
            "table-6",
            "Table 6",
            "16 ranks, one of which is empty",
            "audits:table_6",
            "Ranks with fewer samples make smaller groups, so all train to the end and nothing is "
            "left.",
        ),
        _not_here("table-7", "Table 7", "two nodes, full fine-tuning", f"{_MODELS}."),
        _not_here("table-8", "Table 8", "IFEval", f"{_MODELS}."),
        _not_here(
            "table-9",
            "Table 9",
            "quality by budget",
            f"{_MODELS}; [Speed and learning](../learning.md) has losses of a small model.",
        ),
        _ran(
            "table-10",
            "Table 10",
            "lengths of the data sets",
            "audits:table_10",
            "Distributions are fitted to these figures.",
        ),
        _not_here(
            "table-11",
            "Table 11",
            "the seven parts of MM-Mix",
            "It needs the parts and their preprocessing; here MM-Mix is one distribution.",
        ),
        _ran(
            "table-12",
            "Table 12, Appendix I",
            "what a cache of lengths costs, counted over epochs and changes of the data",
            "length_cache:table_12",
            "The paper gives the times, and does not add them up.",
        ),
        Entry(
            key="tables-13-14",
            item="Tables 13, 14",
            title="samples, tokens and padding per update",
            state="reproduced",
            differs="Lengths are fitted to Table 10, and the package that the paper ran begins "
            "each epoch with small windows.",
            text=text.SHAPES.format(drifting=drifting(CELLS)),
            run=f"{_HERE}.shapes:tables_13_14",
            slow=True,
        ),
        _not_here("table-15", "Table 15", "answer formats of Sorted", f"{_MODELS}."),
        _not_here("table-16", "Table 16", "LoRA", f"{_MODELS}."),
        _ran(
            "table-17",
            "Table 17",
            "padding by buffer",
            "sweeps:table_17",
            "Lengths are fitted, and the paper's runs begin with small windows.",
        ),
        _ran(
            "table-18",
            "Table 18",
            "what each scaling of losses does to the gradient",
            "scaling:table_18",
            "The paper has losses of short runs, which differ by chance; this is the gradient.",
            state="smaller",
        ),
        _ran(
            "table-19",
            "Table 19",
            "throughput by workers",
            "waits:table_19",
            "A trainer that sleeps stands for the GPU.",
            state="smaller",
            slow=True,
        ),
        _ran(
            "table-20",
            "Table 20",
            "prefetch factors below the buffer",
            "waits:table_20",
            "Here the window is filled whatever the prefetch factor, so there is nothing to clamp.",
            state="smaller",
            slow=True,
        ),
        _ran(
            "table-21",
            "Table 21",
            "join against non-join",
            "endings:table_21",
            "Steps are the same, so what is left is the paper's noise.",
            state="predicted",
        ),
        Entry(
            key="package",
            item="The released package",
            title="`group_order_flip` and `max_patches`",
            state="reproduced",
            differs="`TokenBudget` takes them as `emission_order` and `max_patches`; `Even` takes "
            "`max_patches`, too.",
            command="python -m pytest tests/plan/policies/test_token_budget.py",
        ),
        Entry(
            key="messages",
            item="Appendix A",
            title="bytes of a round",
            state="reproduced",
            differs="Ranks say in a few numbers what they could make of a window, not its lengths.",
            command="python -m benchmarks.planning.overhead",
            text=text.MESSAGES,
        ),
    ],
)
