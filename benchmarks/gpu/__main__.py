"""Runs the parts, and writes one file: see the package.

python -m benchmarks.gpu                     # all parts; benchmarks/gpu/results/DEVICE.json
python -m benchmarks.gpu --only text loader --out found.json
python -m benchmarks.gpu --page docs/gpu.md  # and the page, of all stored results
python -m benchmarks.gpu --tiny --out tiny.json    # on the CPU, in some minutes
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import torch

from benchmarks.gpu.model import TINY, Config
from benchmarks.gpu.page import RESULTS, write_page
from benchmarks.gpu.plans import CHAT, LONG, MANY
from benchmarks.gpu.steps import time_steps
from benchmarks.gpu.training import time_loader

SECONDS = {"text": 120, "many-ranks": 100, "long": 60, "loader": 60, "kernels": 200}
"""Of each part; a quarter more, for planning and to start, and it is stopped."""
TEXTS = {"text": CHAT, "many-ranks": MANY, "long": LONG, "loader": CHAT}
_TINY, _TINY_SECONDS = 128, 2.0
_START = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SECONDS, default=list(SECONDS))
    parser.add_argument("--out", type=Path, help="results; by default named after the device")
    parser.add_argument("--page", type=Path, help="write the results under its ## Measured")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU")
    parser.add_argument("--part", choices=SECONDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.tiny or torch.cuda.is_available()):
        print("not measured: torch finds no CUDA device; --tiny tries it on the CPU")
        return
    if options.part:
        run_part(options.part, tiny=options.tiny)
        return
    device = "CPU" if options.tiny else torch.cuda.get_device_name()
    named = re.sub(r"\W+", "-", device.lower())
    out = options.out or RESULTS / f"{named}.json"
    if not gathered(options.only, device, out, tiny=options.tiny):
        sys.exit(f"some parts failed: see {out}")
    if options.page:
        write_page(options.page)


def gathered(parts: list[str], device: str, out: Path, *, tiny: bool) -> bool:
    """Runs parts and writes what they say; whether all went well."""
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "parts": {}}
    for part in parts:
        begin = time.monotonic()
        found["parts"][part] = one = {"outcome": "stopped", "seconds": 0.0, "rows": []}
        for row in rows_of(part, one, tiny=tiny):
            one["rows"].append(row)
            out.write_text(json.dumps(found, indent=1) + "\n")
            print(part, row, flush=True)
        one["seconds"] = round(time.monotonic() - begin, 1)
        out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{part}: {one['outcome']}, {one['seconds']} s", flush=True)
    return all(one["outcome"] == "ok" for one in found["parts"].values())


def rows_of(part: str, told: dict[str, Any], *, tiny: bool) -> Iterator[dict[str, Any]]:
    """The rows of a part, which runs in another process; its outcome is told at the end."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part, *["--tiny"] * tiny]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        timer = Timer(1.25 * seconds_of(part, tiny) + _START, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
    told["outcome"] = {0: "ok", -9: "stopped"}.get(code, f"exit code {code}")


def seconds_of(part: str, tiny: bool) -> float:
    return _TINY_SECONDS if tiny else SECONDS[part]


def run_part(part: str, *, tiny: bool) -> None:
    """In a process of its own: prints a row a line."""
    device = torch.device("cpu") if tiny else torch.device("cuda", torch.cuda.current_device())
    config = TINY if tiny else Config()
    if part == "kernels":
        run_tests(tiny=tiny)
        return
    texts = TEXTS[part].scaled(_TINY) if tiny else TEXTS[part]
    run = time_loader if part == "loader" else time_steps
    run(texts, config, device, seconds_of(part, tiny), say)


def say(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def run_tests(*, tiny: bool) -> None:
    """Runs the tests of a GPU; on the CPU collects them."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", *["--collect-only"] * tiny]
    ran = subprocess.run([*command, "tests/gpu"], capture_output=True, text=True)
    lines = ran.stdout.strip().splitlines()
    sys.stderr.write(ran.stdout if ran.returncode else "")
    say({"tests": lines[-1].strip("= ") if lines else ran.stderr[-300:]})
    if ran.returncode:
        sys.exit(ran.returncode)


if __name__ == "__main__":
    main()
