"""Figures as tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.report import Spread, Table
from benchmarks.peers.registry import PEERS, WORKLOADS

BASE = "torch"
DASH = "-"
Case = tuple[str, int, str]
"""Workload, ranks and kind."""
SPREAD = {"samples/s": ("samples_per_s", 0), "CPU ms/sample": ("cpu_ms", 2)}
MEDIAN = {
    "padding": ("padding", 3),
    "imbalance": ("imbalance", 3),
    "first batch s": ("first_s", 1),
    "peak MiB": ("peak_mib", 0),
}
START, END = "<!-- table: python -m benchmarks.peers show --page -->", "<!-- end of table -->"


def left_out(name: str, workload: str, ranks: int, kind: str) -> bool:
    """Whether the peer has no means for it: its adapter lacks the function."""
    if ranks > PEERS[name].most_ranks:
        return True
    text = Path(f"benchmarks/peers/adapters/{PEERS[name].adapter}.py").read_text()
    return f"\ndef {workload}(" not in text or (kind == "resume" and "\nSTATE = " not in text)


@dataclass(frozen=True)
class Found:
    """The newest runs of every case."""

    runs: Mapping[Case, Mapping[str, list[dict[str, Any]]]]
    """By case and peer, the figures of every round."""
    bases: Mapping[tuple[Case, str], list[dict[str, Any]]]
    """By case and peer, the figures of torch's loader in the same rounds."""

    @classmethod
    def of(cls, lines: Iterable[dict[str, Any]], options: argparse.Namespace) -> Found:
        newest: dict[tuple[Case, str], tuple[float, list[dict[str, Any]]]] = {}
        base: dict[tuple[Case, float], list[dict[str, Any]]] = {}
        for line in lines:
            case = line["workload"], line["ranks"], line["kind"]
            wanted = (options.workloads, options.ranks)
            if line["quick"] != options.quick or line["peer"] not in options.peers:
                continue
            if (
                case[0] not in wanted[0]
                or case[1] not in wanted[1]
                or left_out(line["peer"], *case)
            ):
                continue
            if line["peer"] == BASE:
                base.setdefault((case, line["session"]), []).append(line["figures"])
            session, figures = newest.get((case, line["peer"]), (0.0, []))
            if line["session"] > session:
                session, figures = line["session"], []
            newest[case, line["peer"]] = session, [*figures, line["figures"]]
        runs: dict[Case, dict[str, list[dict[str, Any]]]] = {}
        bases = {}
        for (case, name), (session, figures) in newest.items():
            runs.setdefault(case, {})[name] = figures
            bases[case, name] = base.get((case, session), [])
        return cls(runs, bases)

    def tables(self) -> list[Table]:
        order = {workload: place for place, workload in enumerate(WORKLOADS)}
        cases = sorted(self.runs, key=lambda case: (case[2] != "speed", order[case[0]], case[1]))
        return [self._table(case) for case in cases]

    def summary(self) -> Table:
        """One row for each peer, of all cases: what the page shows."""
        columns = ["", *(f"{what}: x torch" for what in ("text", "images", "mixture"))]
        columns += ["padding", "first batch s", "peak MiB", "lost, repeated", "a worker dies"]
        rows = []
        for name, peer in PEERS.items():
            speeds = [
                ", ".join(self._ratio((workload, ranks, "speed"), name) for ranks in (1, 2))
                for workload in ("padded", "images", "mixture")
            ]
            text = self.runs.get(("padded", 1, "speed"), {}).get(name, [])
            resumed = self.runs.get(("padded", 1, "resume"), {}).get(name)
            killed = self.runs.get(("padded", 1, "kill"), {}).get(name)
            rows.append(
                [
                    peer.title,
                    *speeds,
                    *(_median(text, *MEDIAN[key]) for key in ("padding", *columns[5:7])),
                    ", ".join(_resume(resumed[-1])[1:]) if resumed else DASH,
                    _kill(killed[-1])[0] if killed else DASH,
                ]
            )
        return Table(columns, rows, "All cases, on 1 and 2 ranks; medians")

    def _ratio(self, case: Case, name: str) -> str:
        """Median of samples/s over torch's."""
        ratios = self._ratios(case, name, "samples_per_s")
        return f"{Spread.of(ratios).median:.2f}" if ratios else DASH

    def _ratios(self, case: Case, name: str, key: str) -> list[float]:
        """Of every round, the figure over torch's."""
        pairs = zip(self.runs.get(case, {}).get(name, []), self.bases.get((case, name), []))
        return [a[key] / b[key] for a, b in pairs if key in a and key in b]

    def _table(self, case: Case) -> Table:
        workload, ranks, kind = case
        title = f"{WORKLOADS[workload]}, {ranks} rank{'s' * (ranks > 1)}"
        of = self.runs[case]
        names = [name for name in PEERS if name in of]
        if kind == "speed":
            columns = ["", "x torch", "x torch's CPU ms", *SPREAD, *MEDIAN, "steps", "missed"]
            rows = [[PEERS[name].title, *self._speed(case, name)] for name in names]
            rounds = min(len(runs) for runs in of.values())
            return Table(columns, rows, f"{title}; median (p10-p90) of {rounds} rounds or more")
        if kind == "resume":
            columns = ["", "next batch s", "lost", "repeated"]
            rows = [[PEERS[name].title, *_resume(of[name][-1])] for name in names]
            return Table(columns, rows, f"after a resume: {title}")
        columns = ["", "outcome", "lost", "repeated"]
        rows = [[PEERS[name].title, *_kill(of[name][-1])] for name in names]
        return Table(columns, rows, f"when a worker dies: {title}")

    def _speed(self, case: Case, name: str) -> list[str]:
        runs = self.runs[case][name]
        good = [run for run in runs if "error" not in run]
        if not good:
            return ["failed", *[""] * (3 + len(SPREAD) + len(MEDIAN))]
        cells = []
        for key in ("samples_per_s", "cpu_ms"):
            ratios = self._ratios(case, name, key)
            cells.append(Spread.of(ratios).text(2) if ratios else DASH)
        for key, digits in SPREAD.values():
            values = [run[key] for run in good if key in run]
            cells.append(Spread.of(values).text(digits) if values else DASH)
        cells += [_median(good, key, digits) for key, digits in MEDIAN.values()]
        last = good[-1]
        cells.append(", ".join(map(str, last["steps"])) if "steps" in last else DASH)
        cells.append(DASH if case[0] == "mixture" else str(last.get("missed", DASH)))
        return cells


def write(table: Table, page: Path) -> None:
    """Puts the table into the page, between its two marks."""
    text = page.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    page.write_text(f"{before}{START}\n\n{table.markdown()}\n\n{END}{after}")


def _median(runs: Iterable[Mapping[str, Any]], key: str, digits: int) -> str:
    values = [run[key] for run in runs if key in run]
    return f"{Spread.of(values).median:,.{digits}f}" if values else DASH


def _resume(run: dict[str, Any]) -> list[str]:
    if "error" in run:
        return ["failed", "", ""]
    return [f"{run['next_s']:.1f}", str(run["lost"]), str(run["repeated"])]


def _kill(run: dict[str, Any]) -> list[str]:
    if "error" in run:
        return ["failed", "", ""]
    outcome = run["outcome"]
    if outcome == "error":
        return [f"error after {run['seconds']:.1f} s", DASH, DASH]
    return [outcome, str(run.get("lost", DASH)), str(run.get("repeated", DASH))]
