"""``python -m jobs "Job(...)"``, in the folder ``tests`` with ``scenarios`` on PYTHONPATH, runs one
job and says what came of it."""

import sys
import tempfile
from pathlib import Path

from jobs.job import Job
from jobs.launch import run_all

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for result in run_all([eval(line, {"Job": Job}) for line in sys.argv[1:]], Path(folder)):
            print(result)
