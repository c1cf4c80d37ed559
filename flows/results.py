"""Results of the flows as objects: success with intervals, data frames and paths.

The objects hold what the folders on disk hold. Reading them needs no server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from configs.collection import Collection
from configs.evaluation_grid import EvaluationGrid
from configs.experiment import Experiment
from configs.model_folder import RECIPE, recipe_of
from configs.study import Study
from flows.records import evaluations
from flows.study_page import StudyPage
from tasks.evaluation.before_after import BeforeAfter
from tasks.evaluation.benchmark import EvaluationFileError, EvaluationResult, read_evaluation
from tasks.evaluation.statistics import Estimate, difference
from tasks.evaluation.study_results import Runs
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import read_table, read_trajectories
from tasks.tracking.run_folder import COLLAPSED, FINISHED, RunFolder
from tasks.training.checkpoint import steps_in

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["finished", "collapsed", "unfinished"]


class NoRunError(Exception):
    """A folder holds no training run. The message names the folder and the fix."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A training run on disk, finished or not.

    Attributes:
        status: "collapsed" if training collapsed and ended early, "unfinished" while parts are
            missing.
        evaluations: Maps the name of an evaluation, e.g. "start" or "phase-2", to its result, in
            the order of training.
        checkpoints: Maps the number of training steps to the folder of the checkpoint. Recipes
            delete older checkpoints, see `keep_checkpoints`.
    """

    folder: Path
    recipe: Experiment
    status: Status
    evaluations: dict[str, EvaluationResult]
    checkpoints: dict[int, Path]

    @property
    def last(self) -> EvaluationResult:
        """The last evaluation.

        Raises:
            EvaluationFileError: The run has not been evaluated yet.
        """
        if not self.evaluations:
            raise EvaluationFileError(f"{self.folder} has no evaluation yet. Continue the run.")
        return list(self.evaluations.values())[-1]

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, or None before the first."""
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None

    @property
    def gain(self) -> Estimate:
        """Success in the last evaluation minus success at the start, paired by task."""
        return difference(self.evaluations["start"].tallies, self.last.tallies)

    def success(self) -> pd.DataFrame:
        """Return one row per evaluation (see `success_frame`)."""
        return success_frame(self.evaluations)

    def metrics(self) -> pd.DataFrame:
        """Return one row per training step and one column per metric.

        The newest steps of an unfinished run may not be in a checkpoint yet.
        """
        import pandas as pd

        steps = _run_folder(self.folder, self.recipe).metrics()
        frame = pd.DataFrame.from_dict(steps, orient="index").sort_index()
        return frame.rename_axis("step")

    def episodes(self, evaluation: str) -> pd.DataFrame:
        """Return the episodes of an evaluation, e.g. "phase-2" (see `episode_frame`)."""
        return episode_frame([self.folder / "evaluations" / f"{evaluation}.parquet"])

    def training_episodes(self, step: int) -> pd.DataFrame:
        """Return the episodes that a training step collected (see `episode_frame`)."""
        return episode_frame([self.folder / "rollouts" / f"step-{step:06d}.parquet"])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluation of one policy, and optionally its comparison with another one.

    Attributes:
        folder: Folder of its episodes, tables and picture.
        grid: What was evaluated by the last call.
        cells: Maps the name of a cell, e.g. "test, horizon 8, temperature 1", to its result. A
            folder read from disk also has the cells of earlier calls.
        other: Results of the other policy by cell. Empty without a comparison.
    """

    folder: Path
    grid: EvaluationGrid
    cells: dict[str, EvaluationResult]
    other: dict[str, EvaluationResult]

    def differences(self) -> dict[str, Estimate]:
        """Return success of this policy minus that of the other one, paired by task, by cell."""
        return {
            name: difference(self.other[name].tallies, cell.tallies)
            for name, cell in self.cells.items()
            if name in self.other
        }

    def success(self) -> pd.DataFrame:
        """Return one row per cell (see `success_frame`)."""
        return success_frame(self.cells)

    def episodes(self, cell: str) -> pd.DataFrame:
        """Return the episodes of a cell (see `episode_frame`)."""
        return episode_frame(parts(self.folder / cell_folder(cell)))


@dataclass(frozen=True, slots=True)
class CollectedEpisodes:
    """The episodes of a collection.

    Attributes:
        folder: Folder of the parquet files.
        collection: What was collected.
    """

    folder: Path
    collection: Collection

    def episodes(self) -> pd.DataFrame:
        """Return one row per episode (see `episode_frame`)."""
        return episode_frame(parts(self.folder))

    def trajectories(self) -> list[Trajectory]:
        """Return the episodes with turns, tokens and log-probabilities."""
        return stored_episodes(self.folder)


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The complete runs of a study, and its page.

    Attributes:
        folder: Folder of the page and its figures.
        runs: Maps each arm to its complete runs, one per seed.
        page: The page with tables and pictures.
    """

    folder: Path
    study: Study
    runs: Runs
    page: StudyPage

    def success(self) -> pd.DataFrame:
        """Return one row per arm, seed and evaluation (see `success_frame`)."""
        import pandas as pd

        frames = {}
        for arm, runs in self.runs.items():
            for run in runs:
                results = {result.label: result for result in run.results}
                frames[arm, run.seed] = success_frame(results)
        return pd.concat(frames, names=["arm", "seed"]) if frames else success_frame({})


@dataclass(frozen=True, slots=True)
class BeforeAfterResult:
    """Policies before and after training, on the final tasks.

    Attributes:
        table: File with the table in Markdown.
        seeds: The results of each seed.
        scripted: Maps the name of a task list to the results of scripted policies on it.
    """

    table: Path
    seeds: tuple[BeforeAfter, ...]
    scripted: dict[str, dict[str, EvaluationResult]]


def load_run(folder: Path | str) -> TrainingRun:
    """Read a run's folder, e.g. runs/quickstart-1a2b3c, whether the run is finished or not.

    Raises:
        NoRunError: The folder holds no recipe.
        ModelError: This version cannot read the recipe.
    """
    path = Path(folder).expanduser().absolute()
    recipe = recipe_of(str(path))
    if recipe is None:
        raise NoRunError(
            f"{path} has no {RECIPE}. Give the folder of a run, e.g. runs/quickstart-1a2b3c."
        )
    return training_run(_run_folder(path, recipe))


def training_run(folder: RunFolder) -> TrainingRun:
    """Read what a run's folder holds."""
    steps = sorted(steps_in(folder.path / "checkpoints"))
    checkpoints = {step: folder.checkpoint(step) for step in steps}
    status: Status = "finished" if folder.is_done(FINISHED) else "unfinished"
    if folder.is_done(COLLAPSED):
        status = "collapsed"
    return TrainingRun(folder.path, folder.experiment, status, evaluations(folder), checkpoints)


def load_evaluation(folder: Path | str) -> Evaluation:
    """Read the folder of an evaluation, e.g. runs/evaluated/textcraft-oracle-1a2b3c.

    Raises:
        EvaluationFileError: The folder holds none.
    """
    path = Path(folder).expanduser().absolute()
    cells = read_results(path)
    stored = json.loads((path / "evaluation.json").read_text(encoding="utf-8"))
    return Evaluation(path, EvaluationGrid.model_validate(stored["grid"]), cells, {})


def read_results(folder: Path) -> dict[str, EvaluationResult]:
    """Return the results of an earlier evaluation by cell.

    Raises:
        EvaluationFileError: The folder holds none.
    """
    try:
        return {
            name: read_evaluation(folder / cell / "evaluation.json")
            for name, cell in _cells(folder).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise EvaluationFileError(f"{folder} has no readable evaluation: {problem}") from problem


def cells_in(folder: Path) -> dict[str, str]:
    """Return the cells of earlier evaluations with the names of their folders, if there are any."""
    try:
        return _cells(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _cells(folder: Path) -> dict[str, str]:
    index = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    return dict(index["cells"])


def cell_folder(name: str) -> str:
    """Return the folder name of a cell's episodes, e.g. "wood-test-horizon-16-temperature-1"."""
    return name.replace(", ", "-").replace(" ", "-")


def parts(folder: Path) -> list[Path]:
    """Return the parquet files of a collection, including those of failed episodes."""
    return sorted([*folder.glob("part-*.parquet"), *folder.glob("failed/*.parquet")])


def stored_episodes(folder: Path) -> list[Trajectory]:
    """Return the episodes of a collection, including failed ones."""
    return [each for part in parts(folder) for each in read_trajectories(part)]


def success_frame(results: Mapping[str, EvaluationResult]) -> pd.DataFrame:
    """Return a data frame with one row per evaluation, indexed by its name.

    Success and reward come with the bounds of their 95 % intervals. They are nan while episodes
    are missing.
    """
    import pandas as pd

    rows = [
        {
            "step": result.step,
            "horizon": result.horizon,
            "success": result.success.value,
            "success_low": result.success.low,
            "success_high": result.success.high,
            "reward": result.reward.value,
            "reward_low": result.reward.low,
            "reward_high": result.reward.high,
            "turns": result.turns,
            "tokens": result.tokens,
            "truncated": result.truncated,
            "tasks": len(result.tasks),
            "episodes": result.scored,
            "missing": result.failed,
        }
        for result in results.values()
    ]
    return pd.DataFrame(rows, index=pd.Index(list(results), name="evaluation"))


def episode_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Return a data frame with one row per episode of trajectory files.

    The columns are those of `tasks.rollout.trajectory_parquet`, without tokens and turns.

    Raises:
        FileNotFoundError: A file does not exist.
        TrajectoryFileError: A file holds no trajectories.
    """
    import pandas as pd

    frames = [read_table(file).drop_columns(["prompt", "turns"]).to_pandas() for file in files]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _run_folder(path: Path, recipe: Experiment) -> RunFolder:
    """Return the run's folder at this path, which may have been moved or renamed."""
    folder = RunFolder(path.parent, recipe)
    folder.path = path
    return folder
