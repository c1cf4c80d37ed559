"""The runs of a study on disk: commands still to run for each of them, and their results."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any

import yaml

from configs.collection import Source
from configs.evaluation_grid import EvaluationGrid
from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError
from configs.rules import Rules
from configs.study import Study
from environments.handshake import recorded_version
from environments.registry import load_world
from flows.collection_session import digest, model_of
from flows.job import EvaluateJob, TrainJob, write_job
from flows.model_check import fit_experiment
from flows.parallel_commands import Command
from flows.recorded_weights import check_start, has_same_weights, recorded_weights
from flows.records import evaluations, is_finished
from flows.requests import grid_of_run
from flows.results import cell_folder, cells_in, read_results, stored_episodes
from tasks.evaluation.benchmark import EvaluationFileError, EvaluationResult
from tasks.evaluation.study_results import StudyRun
from tasks.evaluation.study_runs_file import run_key
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.tracking.run_folder import RunFileError, RunFolder
from tasks.training.collapse import collapse_note


class StudyRuns:
    """The runs of a study, one per arm and seed. Finished runs are reused."""

    def __init__(self, study: Study, infrastructure: InfraSettings) -> None:
        self._study, self._infrastructure = study, infrastructure
        self.folder = (
            infrastructure.runs.absolute() / "studies" / f"{study.name}-{study.fingerprint()}"
        )
        self._experiments = {
            (arm, seed): _fitted(study.experiment(arm, seed))
            for seed in study.seeds
            for arm in study.arms
        }
        self._begun: set[Path] = set()

    def dtypes(self) -> set[str]:
        """Return the dtypes of the policies."""
        return {experiment.policy.dtype for experiment in self._experiments.values()}

    def are_begun(self) -> bool:
        """Return whether a run of the study exists on this machine."""
        return any(
            RunFolder(self._infrastructure.runs, experiment).path.exists()
            for experiment in self._experiments.values()
        )

    def commands(self, only_seeds: Collection[int] | None = None) -> list[Iterator[Command]]:
        """Return one chain of commands for each run that still has work to do.

        The next command of a chain is computed when the one before has ended. Seeds are the outer
        loop, so that the first few runs already allow a comparison of all arms.

        Args:
            only_seeds: The seeds to run. None: all seeds of the study.

        Raises:
            RecipeError: One of them is not a seed of the study.
        """
        chosen = self._study.chosen_seeds(only_seeds)
        return [self._commands(arm, seed) for arm, seed in self._experiments if seed in chosen]

    def found(self, kept: Mapping[str, StudyRun] | None = None) -> dict[str, list[StudyRun]]:
        """Return the complete runs of each arm.

        Args:
            kept: Results by run key (see `key`), for runs that are not on this machine.

        Raises:
            EvaluationFileError: The runs were measured on different versions of a world, or began
                with different weights although their recipes name the same model.
        """
        each: dict[str, list[StudyRun]] = {arm: [] for arm in self._study.arms}
        # The folders that were measured on each version of each world.
        worlds: dict[tuple[str, Rules], dict[str, set[str]]] = {}
        # The runs that began with each digest of each model's weights.
        models: dict[str, dict[str, set[str]]] = {}
        for (arm, seed), experiment in self._experiments.items():
            if (run := self._found(arm, seed)) is not None:
                measured = self._versions(arm, seed)
            elif kept and (run := kept.get(self.key(arm, seed))) is not None:
                measured = {(f"{arm}, seed {seed} (a kept run)", self._version(arm, seed))}
            else:
                continue
            each[arm].append(run)
            if run.weights:
                of_model = models.setdefault(experiment.policy.model, {})
                of_model.setdefault(run.weights, set()).add(f"{arm}, seed {seed}")
            world = experiment.environment
            of_world = worlds.setdefault((world.name, world.rules), {})
            for folder, version in measured:
                of_world.setdefault(version, set()).add(folder)
        for (name, _), of_world in worlds.items():
            self._check_one("versions", name, of_world)
        for name, of_model in models.items():
            self._check_one("weights", name, of_model)
        return each

    def _check_one(self, what: str, of: str, runs: Mapping[str, set[str]]) -> None:
        """
        Args:
            what: What the runs must have in common.
            of: The world or model that has it.
            runs: Maps each value to the runs that have it.

        Raises:
            EvaluationFileError: There are several values.
        """
        if len(runs) < 2:
            return
        lines = [f"{value[:16]}: {', '.join(sorted(runs[value]))}" for value in runs]
        raise EvaluationFileError(
            f"The runs of the study {self._study.name} have different {what} of {of}, so they "
            "cannot be compared:\n"
            + "\n".join(lines)
            + "\nDelete the runs of all but one, and run the study again."
        )

    def key(self, arm: str, seed: int) -> str:
        """Return a name built from all that the run's result depends on.

        This includes the version of the world, see `_version`.
        """
        beyond = self._study.beyond
        return run_key(
            arm,
            self._experiments[arm, seed].model_dump(mode="json"),
            beyond.model_dump(mode="json") if beyond else None,
            self._version(arm, seed),
        )

    def _version(self, arm: str, seed: int) -> str:
        """Return the version of the world that the run on this machine began on.

        Without such a record it is the current version.
        """
        experiment = self._experiments[arm, seed]
        begun = recorded_version(RunFolder(self._infrastructure.runs, experiment).path / "world")
        return begun or world_version(experiment.environment.name, experiment.environment.rules)

    def _versions(self, arm: str, seed: int) -> set[tuple[str, str]]:
        """Return the folders of a finished run and its further evaluations, with their versions.

        Folders that record no version are left out.
        """
        experiment = self._experiments[arm, seed]
        run = RunFolder(self._infrastructure.runs, experiment).path
        files = [(run, run / "world")]
        for _, folder, _ in self._further(arm, seed, experiment):
            files += [(folder, file) for file in folder.glob("*/world")]
        return {
            (str(folder), version) for folder, file in files if (version := recorded_version(file))
        }

    def _commands(self, arm: str, seed: int) -> Iterator[Command]:
        experiment = self._experiments[arm, seed]
        jobs = self.folder / "jobs"
        logs = self.folder / "logs"
        name = f"{arm}, seed {seed}"
        if not is_finished(RunFolder(self._infrastructure.runs, experiment)):
            # A copy: the study's recipe may change meanwhile.
            recipe = self.folder / "recipes" / f"{arm}-{seed}.yaml"
            recipe.parent.mkdir(parents=True, exist_ok=True)
            recipe.write_text(
                yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False),
                encoding="utf-8",
            )
            job = TrainJob(recipe=str(recipe), overrides=self._shown(arm, experiment))
            yield Command(
                f"{name}: training",
                write_job(jobs / f"{arm}-{seed}.json", job),
                logs / f"{arm}-{seed}.log",
            )
        for side, folder, grid in self._further(arm, seed, experiment):
            if not is_whole(folder, grid.source) and folder not in self._begun:
                check_start(RunFolder(self._infrastructure.runs, experiment))
                self._begun.add(folder)
                words = write_job(
                    jobs / f"{arm}-{seed}-{side}.json",
                    EvaluateJob(grid=grid, folder=folder),
                )
                yield Command(
                    f"{name}: additional evaluation of the {side} policy",
                    words,
                    logs / f"{arm}-{seed}-{side}.log",
                )

    def _shown(self, arm: str, experiment: Experiment) -> dict[str, Any]:
        """Return the arm's overrides that name its run.

        Only those that the recipe has in the same words, so that they change nothing.
        """
        recipe = experiment.model_dump(mode="json")
        return {
            name: value
            for name, value in self._study.arms[arm].items()
            if reduce(lambda part, field: part.get(field, {}), name.split("."), recipe) == value
        }

    def _found(self, arm: str, seed: int) -> StudyRun | None:
        """Return the results of a run, or None while a part of it is missing."""
        experiment = self._experiments[arm, seed]
        folder = RunFolder(self._infrastructure.runs, experiment)
        if not is_finished(folder):
            return None
        further: dict[str, dict[str, EvaluationResult]] = {"first": {}, "last": {}}
        for side, place, grid in self._further(arm, seed, experiment):
            if not is_whole(place, grid.source):
                return None
            further[side] = read_results(place)
        steps = folder.metrics()
        return StudyRun(
            arm,
            seed,
            list(evaluations(folder).values()),
            steps,
            bool(collapse_note(steps)),
            further["first"],
            further["last"],
            recorded_weights(folder.path),
        )

    def episodes(self, run: StudyRun) -> dict[str, list[Trajectory]]:
        """Return the episodes of a run by evaluation, or nothing if it is not complete here.

        Further evaluations have names such as "last, test, horizon 8, temperature 1".
        """
        if self._found(run.arm, run.seed) is None:  # the run is a kept one
            return {}
        experiment = self._experiments[run.arm, run.seed]
        folder = RunFolder(self._infrastructure.runs, experiment)
        files = {
            name: folder.evaluation(name).with_suffix(".parquet") for name in evaluations(folder)
        }
        played = {name: read_trajectories(file) for name, file in files.items() if file.is_file()}
        for side, place, _ in self._further(run.arm, run.seed, experiment):
            for cell in read_results(place):
                played[f"{side}, {cell}"] = stored_episodes(place / cell_folder(cell))
        return played

    def _further(
        self, arm: str, seed: int, experiment: Experiment
    ) -> Iterator[tuple[str, Path, EvaluationGrid]]:
        """Yield side, result folder and grid of a finished run's further evaluations."""
        if self._study.beyond is None:
            return
        run = RunFolder(self._infrastructure.runs, experiment)
        try:
            start = json.loads((run.path / "trainer.json").read_text(encoding="utf-8"))["policy"]
        except (OSError, ValueError, KeyError, TypeError) as damaged:
            raise RunFileError(
                f"{run.path / 'trainer.json'} is damaged ({damaged}). Delete {run.path} to train "
                "the run again."
            ) from None
        # Without a checkpoint, the evaluation rejects this folder because it holds no model.
        last = max((run.path / "checkpoints").glob("step-*"), default=run.path / "checkpoints")
        folder, grid = self.folder / "evaluations", self._grid(experiment, seed, Path(start))
        # Arms with equal grids share it.
        yield "first", folder / f"{Path(start).name}-seed-{seed}-{digest(grid)}", grid
        yield "last", folder / f"{arm}-seed-{seed}", self._grid(experiment, seed, last)

    def _grid(self, experiment: Experiment, seed: int, policy: Path) -> EvaluationGrid:
        """Return the further evaluation of a run's policy, with the study's tasks, horizons and temperatures."""
        beyond = self._study.beyond
        assert beyond is not None
        given: dict[str, Any] = {
            name: values
            for name in ("tasks", "horizons", "temperatures")
            if (values := getattr(beyond, name))
        }
        if beyond.tasks:
            given["n_tasks"] = None
        return grid_of_run(experiment, str(policy), samples=beyond.samples, seed=seed, **given)


def _fitted(experiment: Experiment) -> Experiment:
    """Fit the budgets to the model, or keep them if the model is not on this machine.

    `check_study` refuses to train such a recipe. A report of kept runs does not need the model.
    """
    try:
        return fit_experiment(experiment)
    except RecipeError:
        return experiment


@cache
def world_version(name: str, rules: Rules) -> str:
    """Return the version of a world's tasks and observations.

    Cached, because building the world to read its version may take seconds.
    """
    return load_world(name, rules).version


def is_whole(folder: Path, source: Source) -> bool:
    """Return whether the folder holds an evaluation without episodes broken by infrastructure.

    Running the same evaluation command again replays broken episodes. It refuses an evaluation of
    other weights, from before its checkpoint was trained again.
    """
    return (
        (folder / "evaluation.json").is_file()
        and all(result.complete for result in read_results(folder).values())
        and all(
            has_same_weights(folder / cell, model_of(source)) for cell in cells_in(folder).values()
        )
    )
