"""Table 12 and Appendix I of the ODB paper: what a cache of lengths costs, amortised."""

from __future__ import annotations

from benchmarks.papers.outcome import Outcome, Table

# Appendix I: seconds to build the cache, on one H20. Samples trained on in an epoch. Samples per
# second of GMT-oracle, which needs the cache, and of ODB, which does not: Tables 1 and 12.
CASES = {
    "UltraChat, 8B": (31.0, 197_471, 10.94, 10.23),
    "UltraChat, 2B": (31.0, 197_471, 39.44, 36.91),
    "LLaVA, 8B": (3300.0, 149_826, 26.65, 24.87),
    "LLaVA, 2B": (3300.0, 149_826, 79.44, 82.42),
    "ShareGPT4o, 8B": (137.0, 54_419, 2.57, 5.83),
    "ShareGPT4o, 2B": (137.0, 54_419, 7.03, 16.09),
    "MM-Mix, 2B, two nodes": (299.9, 272_589, 26.68, 79.15),
}
EPOCHS = (1, 2, 3, 10)


def table_12(seed: int) -> Outcome:
    rows = []
    for name, (cache, samples, oracle, online) in CASES.items():
        epoch = samples / oracle
        with_cache = [samples * n / (cache + n * epoch) for n in EPOCHS]
        changed = samples / (cache + epoch)
        # After so many epochs without a change of the data the oracle's lead has paid for it.
        pays = cache / (samples / online - epoch) if oracle > online else float("inf")
        row = [name, f"{cache:,.0f}", f"{epoch:,.0f}", f"{oracle:.2f}"]
        row += [f"{rate:.2f}" for rate in with_cache]
        rows.append([*row, f"{changed:.2f}", f"{online:.2f}", f"{pays:.1f}"])
    columns = ["", "cache, s", "epoch, s", "GMT-oracle, samples/s"]
    columns += [f"{n} epoch{'s' * (n > 1)}, cache counted" for n in EPOCHS]
    columns += ["data changed every epoch", "ODB", "epochs until the cache pays"]
    llava = next(row for row in rows if row[0] == "LLaVA, 8B")
    return Outcome(
        [Table(columns, rows)],
        "1.07 of ODB on LLaVA 8B without the cache",
        f"{float(llava[4]) / float(llava[9]):.2f} with it, after one epoch",
    )
