"""Evaluate the random policy on TextCraft while a proxy injects faults into the server's answers.

    python -m tests.soaks.faulty_answers --episodes 90

Each mode runs `flows.evaluate` behind the proxy. An incomplete evaluation runs once more without
the proxy. An undisturbed evaluation gives the true success. The command fails if a result is wrong.

A complete evaluation must equal the undisturbed one task by task. An incomplete evaluation must

- say so in its first line and in MLflow
- exit with a non-zero status
- have bounds that contain the true success
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient

from flows.results import read_results
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.report import share, success_share
from tasks.evaluation.tables import aligned
from tests.support.faulty_proxy import FAULTS, Fault, faulty_proxy
from tests.support.processes import local_server

ROOT = Path(__file__).parents[2]
EPISODE_SECONDS = "6"
"""Deadline of an episode in the mode "late". More than nine turns, each 0.6 s late, exceed it."""
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One run of the command.

    Attributes:
        status: Exit status.
        first: First line of the output.
        result: The stored result.
        described: Description of the run in MLflow.
        published: Names of the run's metrics in MLflow, without their prefixes.
    """

    status: int
    first: str
    result: EvaluationResult
    described: str
    published: set[str]

    def wrong(self, truth: EvaluationResult) -> str:
        """Return a description of the error, which is empty if there is none."""
        if self.result.complete:
            if self.result.tallies != truth.tallies:
                return "complete, but its successes differ from the undisturbed evaluation"
            return "complete, but its exit status is not 0" if self.status else ""
        low, high = self.result.bounds
        if self.status == 0:
            return "incomplete with exit status 0"
        if "INCOMPLETE" not in self.first:
            return "incomplete, but the first line does not say so"
        if "INCOMPLETE" not in self.described or "success" in self.published:
            return "incomplete, but MLflow does not say so"
        return (
            ""
            if low.value <= truth.success.value <= high.value
            else "the bounds do not contain the true success"
        )


@dataclass(frozen=True, slots=True)
class Drill:
    """The results of one mode.

    Attributes:
        mode: Kind of the faults.
        faults: Number of faults.
        disturbed: The evaluation behind the proxy.
        repeated: The same command without the proxy, or `disturbed` if that is complete.
    """

    mode: Fault
    faults: int
    disturbed: Evaluated
    repeated: Evaluated

    def wrong(self, truth: EvaluationResult) -> str:
        """Return a description of the error, which is empty if there is none."""
        if not self.repeated.result.complete:
            return "the repeated command did not play the missing episodes"
        return self.disturbed.wrong(truth) or self.repeated.wrong(truth)


def evaluated(url: str, runs: Path, out: Path, episodes: int, *more: str) -> Evaluated:
    """Run `flows.evaluate` against a server."""
    words = [
        "flows.evaluate",
        "textcraft",
        "--random",
        "--tasks",
        "test",
        "--n-tasks",
        str(episodes),
        "--out",
        str(out),
        *more,
    ]
    environment = {**os.environ, "AGENTGYM_RUNS": str(runs), "AGENTGYM_ENVIRONMENT_URLS": url}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if not (out / "evaluation.json").is_file():
        raise RuntimeError(
            f"{' '.join(words)} wrote no evaluation (exit status {done.returncode}):\n{done.stderr}"
        )
    [result] = read_results(out).values()
    client = MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    experiments = [each.experiment_id for each in client.search_experiments()]
    [recorded] = client.search_runs(experiments, f"tags.folder = '{out}'")
    published = {name.rpartition("/")[2] for name in recorded.data.metrics}
    first = next(iter(done.stdout.strip().splitlines()), "")
    return Evaluated(
        done.returncode, first, result, recorded.data.tags["mlflow.note.content"], published
    )


@contextmanager
def textcraft_server(state_dir: Path) -> Iterator[str]:
    """Start a TextCraft server and yield its URL."""
    command = [sys.executable, "-m", "environments", "serve", "textcraft", "--port", "{port}"]
    with local_server("textcraft", command, state_dir=state_dir) as server:
        yield server.url


def drills(
    folder: Path, episodes: int, modes: Sequence[Fault], faulty_share: float
) -> tuple[EvaluationResult, list[Drill]]:
    """Return the undisturbed result and the results of each mode."""
    runs, found = folder / "runs", list[Drill]()
    with textcraft_server(folder / "state") as url:
        truth = evaluated(url, runs, folder / "undisturbed", episodes)
        if truth.status or not truth.result.complete:
            raise RuntimeError(f"the undisturbed evaluation failed: {truth.first}")
        for mode in modes:
            late = mode == "late"
            more = (
                ["--rollout.episode_seconds", EPISODE_SECONDS, "--rollout.retries", "0"]
                if late
                else []
            )
            with faulty_proxy(url, mode, 1.0 if late else faulty_share) as (proxied, proxy):
                disturbed = evaluated(proxied, runs, folder / mode, episodes, *more)
                faults = proxy.faults
            repeated = (
                disturbed
                if disturbed.result.complete
                else evaluated(url, runs, folder / mode, episodes)
            )
            found.append(Drill(mode, faults, disturbed, repeated))
    return truth.result, found


def table(truth: EvaluationResult, found: Sequence[Drill]) -> str:
    """Return the results of the modes as a table for a terminal."""
    header = ["mode", "faults", "missing", "exit", "success", "repeated", "error"]
    rows = [["undisturbed", "0", "0", "0", share(truth.success), "", ""]]
    for each in found:
        disturbed, repeated = each.disturbed, each.repeated
        rows.append(
            [
                each.mode,
                str(each.faults),
                str(disturbed.result.failed),
                str(disturbed.status),
                success_share(disturbed.result),
                success_share(repeated.result),
                each.wrong(truth) or "-",
            ]
        )
    return aligned(header, rows)


def main() -> None:
    """Run all modes. The exit status is 1 if a result is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soaks.faulty_answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=90,
        help="episodes of each evaluation (default: %(default)s)",
    )
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=FAULTS,
        default=list(FAULTS),
        help="kinds of faults (default: all)",
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.1,
        help="share of faulty answers, except in the mode late (default: 0.1)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="folder of the runs and evaluations (default: a temporary folder)",
    )
    given = parser.parse_args()
    place = nullcontext(str(given.folder)) if given.folder else tempfile.TemporaryDirectory()
    with place as folder:
        truth, found = drills(Path(folder).absolute(), given.episodes, given.modes, given.share)
    sys.stdout.write(table(truth, found) + "\n")
    if any(each.wrong(truth) for each in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
