"""A study: arms that differ in named fields of one recipe, each run with the same seeds.

Endpoint and comparisons are fixed before the first run. All other results in the report are
descriptive.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from configs.config_model import ConfigModel, Fraction
from configs.experiment import Experiment
from configs.files import find_yaml, names_in, read_yaml
from configs.recipe import RecipeError, blame, load_recipe
from configs.task_selection import TaskSelection

FOLDER = Path(__file__).parent / "studies"
START = "start"
"""In a comparison: the arm's own policy before training."""


class Endpoint(ConfigModel):
    """The outcome that decides a comparison."""

    measure: Literal["success", "reward"] = "success"
    """Success rate on the recipe's evaluation tasks, or their mean reward."""
    at: Literal["end", "turns", "area"] = "end"
    """When it is measured.

    "end": after the last training step. "turns": after the same number of environment turns in all
    arms, by linear interpolation between two evaluations. "area": on average over the training
    steps, which is the area under the curve of the evaluations. The report then has the fall from
    the best evaluation to the last, too.
    """
    budget: PositiveInt | None = None
    """Number of environment turns for "turns". Empty: the turns of the run with the fewest."""


class Beyond(ConfigModel):
    """Further evaluations of every run's first and last policy.

    They use other tasks, horizons or temperatures.
    """

    tasks: tuple[TaskSelection, ...] = ()
    """Task lists. Empty: the recipe's own."""
    horizons: tuple[PositiveInt, ...] = ()
    """Turn limits. Empty: the recipe's own."""
    temperatures: tuple[NonNegativeFloat, ...] = ()
    """Sampling temperatures. Empty: the recipe's own."""
    samples: PositiveInt = 1
    """Episodes per task."""


class Study(ConfigModel):
    """Arms x seeds of one recipe."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")]
    """Name of the study. It names the runs' group in MLflow, their folders and the report."""
    question: str
    """The research question, in one sentence."""
    recipe: str
    """A recipe of configs/ by name, or the path of a YAML file."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """New values for all arms, by dotted field name.

    "{seed}" in a text is replaced by the seed of the run, e.g. in the path of its first policy.
    """
    arms: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$")], dict[str, Any]],
        Field(min_length=1),
    ]
    """Name of each arm to its new values, by dotted field name."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    """Seeds of each arm. A number n means 0 to n - 1.

    Each seeds the starter policy, the task order, the sampling and the evaluation.
    """
    tuning_seeds: tuple[NonNegativeInt, ...] = ()
    """Seeds under which the recipe was chosen. None of them may be in `seeds`."""
    endpoint: Endpoint = Endpoint()
    """The outcome that decides the comparisons."""
    smallest_effect: PositiveFloat | None = None
    """Smallest difference of interest in the endpoint, e.g. 0.02 for two points of success.

    The report tests whether a difference is smaller than this. Empty: it does not test this.
    """
    comparisons: tuple[tuple[str, str], ...] = ()
    """The family of comparisons: pairs of an arm and its reference.

    The reference "start" is the arm's own policy before training.
    """
    thresholds: tuple[Fraction, ...] = ()
    """Success rates, each from 0 to 1.

    The report gives the turns until an evaluation first reaches each.
    """
    beyond: Beyond | None = None
    """Further evaluations. Empty: none."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        return (
            tuple(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
        )

    @model_validator(mode="after")
    def _check_seeds(self) -> Study:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} has a duplicate; remove it")
        if both := sorted(set(self.seeds) & set(self.tuning_seeds)):
            raise ValueError(
                f"seeds and tuning_seeds both have {both}; the recipe was chosen under these "
                "seeds, so report others"
            )
        return self

    @model_validator(mode="after")
    def _check_arms(self) -> Study:
        if START in self.arms:
            raise ValueError(
                f"arms has the name {START!r}, which is reserved for the policy before training; "
                "rename the arm"
            )
        for arm, other in self.comparisons:
            for name in {arm, other} - set(self.arms) - ({START} - {arm}):
                raise ValueError(
                    f"comparisons has {name!r}, which is not an arm; use one of: "
                    f"{', '.join(self.arms)}"
                )
        for where, changes in {"overrides": self.overrides, **self.arms}.items():
            for name in changes:
                if name == "name" or name.partition(".")[0] == "seeds":
                    raise ValueError(
                        f"{where} has {name!r}, which each run gets from the study; remove it and "
                        "set the study's own name or seeds"
                    )
        return self

    def fields(self, arm: str, seed: int) -> dict[str, Any]:
        """Return the overrides of a run. Those of the arm come last, so they decide."""
        seeds = {f"seeds.{name}": seed for name in ("training", "evaluation", "starter")}
        own = self.arms[arm]
        changes = {k: v for k, v in self.overrides.items() if k not in own} | own
        of_seed = {
            name: value.replace("{seed}", str(seed)) if isinstance(value, str) else value
            for name, value in changes.items()
        }
        return {**of_seed, "name": self.name, **seeds}

    def chosen_seeds(self, only: Collection[int] | None) -> Collection[int]:
        """Return the seeds to run: all, or only some of them.

        Raises:
            RecipeError: One of `only` is not a seed of the study.
        """
        if unknown := sorted(set(only or ()) - set(self.seeds)):
            raise RecipeError(
                f"only_seeds: {unknown[0]} is not a seed of the study {self.name}, which has "
                f"{', '.join(map(str, self.seeds))}"
            )
        return self.seeds if only is None else only

    def experiment(self, arm: str, seed: int) -> Experiment:
        """Return the experiment of a run.

        Raises:
            RecipeError: The recipe or an override is wrong.
        """
        return load_recipe(self.recipe, self.fields(arm, seed))

    def fingerprint(self) -> str:
        """Return 8 hex digits that identify the study by everything its runs depend on."""
        runs = [
            self.experiment(arm, seed).model_dump(mode="json")
            for arm in self.arms
            for seed in self.seeds
        ]
        own = self.model_dump(mode="json", exclude={"smallest_effect", "tuning_seeds"})
        return hashlib.sha256(json.dumps([own, runs], sort_keys=True).encode()).hexdigest()[:8]


def study_names() -> list[str]:
    """Return the names of the studies in configs/studies/."""
    return names_in(FOLDER)


def load_study(study: str, overrides: Mapping[str, Any] | None = None) -> Study:
    """Read and check a study, including all its runs.

    Args:
        study: Path of a YAML file, or name of a study in configs/studies/.
        overrides: New values of the study's own fields, e.g. {"seeds": 2}.

    Raises:
        RecipeError: The file is missing or not YAML, a field is wrong, an arm is not a valid
            recipe, two arms are the same recipe, a run stops when it collapses, a run is
            evaluated differently from the others, or two compared arms have other tasks.
    """
    path = find_yaml(study, FOLDER, "study", RecipeError)
    in_file = read_yaml(path, RecipeError)
    try:
        found = Study.model_validate(
            in_file | dict(overrides or {}), context={"folders": [path.parent]}
        )
    except ValidationError as problem:
        raise RecipeError(
            blame(path, "study", Study, in_file, overrides or {}, problem), problem
        ) from None
    measured: dict[tuple[str, int], dict[str, Any]] = {}
    recipes: dict[str, str] = {}
    worlds: dict[str, tuple[str, str, float | None]] = {}
    for arm in found.arms:
        for seed in found.seeds[:2]:  # a field with {seed} differs between any two
            try:
                experiment = found.experiment(arm, seed)
            except RecipeError as problem:
                raise RecipeError(f"{path}, arm {arm!r}: {problem}") from None
            if experiment.algorithm.on_collapse == "stop":
                raise RecipeError(
                    f"{path}, arm {arm!r}: algorithm.on_collapse: stop ends a run without its last "
                    "evaluation, which the study compares; use report or roll_back"
                )
            measured[arm, seed] = experiment.evaluation.model_dump()
            world = experiment.environment
            worlds[arm] = world.name, world.rules, world.success_score
            if (same := recipes.setdefault(experiment.model_dump_json(), arm)) != arm:
                raise RecipeError(
                    f"{path}: the arms {same!r} and {arm!r} are the same recipe; remove one of them"
                )
    first = next(iter(measured))
    for run, fields in measured.items():
        if different := [name for name, value in fields.items() if value != measured[first][name]]:
            (one, seed), (other, other_seed) = first, run
            raise RecipeError(
                f"{path}: the runs {one!r}, seed {seed}, and {other!r}, seed {other_seed}, cannot be "
                f"compared, because their evaluation.{different[0]} differs; set it in overrides, "
                "without {seed}"
            )
    for one, other in found.comparisons:
        if other != START and worlds[one] != worlds[other]:
            raise RecipeError(
                f"{path}: comparisons has {one!r} and {other!r}, whose environment.name, "
                "environment.rules or environment.success_score differ, so their tasks cannot be "
                "paired; remove the comparison"
            )
    return found
