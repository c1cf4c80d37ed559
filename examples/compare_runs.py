"""Compare two or more runs as one data frame.

python examples/compare_runs.py RUN RUN ... [FILE.csv]
python examples/compare_runs.py runs/quickstart-1a2b3c runs/quickstart-4d5e6f curves.csv
"""

from __future__ import annotations

import sys

import pandas as pd

from flows.api import load_run


def main() -> None:
    """Print the evaluations of the runs, and write the metrics of all steps to the CSV file."""
    folders = [word for word in sys.argv[1:] if not word.endswith(".csv")]
    runs = {run.folder.name: run for run in map(load_run, folders)}
    success = pd.concat({name: run.success() for name, run in runs.items()}, names=["run"])
    print(success[["step", "success", "success_low", "success_high", "turns"]].to_string())
    curves = pd.concat({name: run.metrics() for name, run in runs.items()}, names=["run"])
    # Imitation collects no episodes, so its runs have no rollout/success.
    print(curves.filter(regex="^(rollout/success|update/loss)$").groupby("run").tail(3))
    if sys.argv[-1].endswith(".csv"):
        curves.to_csv(sys.argv[-1])


if __name__ == "__main__":
    main()
