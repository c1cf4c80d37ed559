"""Checks of algorithms and schedules from other packages: what a run requires of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from configs.algorithm import Algorithm
from configs.curriculum import Curriculum, Training
from configs.experiment import Experiment
from configs.imitation import Imitation
from configs.policy_gradient import PolicyGradient
from configs.recipe import load_recipe
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

RECIPE = "quickstart"
STEPS = 60
GROUPS, MEMBERS = 4, 6
GOOD, BAD = 1, 2
"""Tokens of the two actions. The first earns 1, the second 0."""


class Finding(NamedTuple):
    """The result of a check.

    Attributes:
        name: The requirement.
        problem: What is wrong and what to do. Empty: the requirement holds.
    """

    name: str
    problem: str


def check_algorithm(algorithm: str | Mapping[str, Any]) -> Iterator[Finding]:
    """Check an algorithm's class. Each finding is available as soon as its check ends.

    Args:
        algorithm: Its name in a recipe, or the fields of the section `algorithm`.

    Raises:
        RecipeError: There is no such algorithm, or a field is invalid.
    """
    fields = {"name": algorithm} if isinstance(algorithm, str) else dict(algorithm)
    overrides = {f"algorithm.{name}": value for name, value in fields.items()}
    made = load_recipe(RECIPE, overrides).algorithm
    checks: dict[str, Callable[[], str]] = {
        "JSON round trip": partial(_round_trip, overrides),
        "no torch for a recipe": partial(_loads_torch, overrides),
        "trainer and batches": partial(_classes, made),
    }
    if isinstance(made, PolicyGradient):
        checks |= {name: partial(check, made) for name, check in _ADVANTAGE_CHECKS.items()}
    if isinstance(made, Imitation) and made.trajectories is None:
        checks["selection"] = partial(_selection, made)
    return _findings(checks)


def check_schedule(schedule: Mapping[str, Any]) -> Iterator[Finding]:
    """Check a schedule's class. Each finding is available as soon as its check ends.

    Args:
        schedule: The fields of the section `curriculum`, e.g. {"kind": "fixed", "horizon": 6}.

    Raises:
        RecipeError: There is no such schedule, or a field is invalid.
    """
    overrides = {"curriculum": dict(schedule), "algorithm.steps": STEPS}
    made = load_recipe(RECIPE, overrides).curriculum
    return _findings(
        {
            "JSON round trip": partial(_round_trip, overrides),
            "no torch for a recipe": partial(_loads_torch, overrides),
            "positive horizons": partial(_positive, made),
            "pure function": partial(_pure, made, load_recipe(RECIPE, overrides).curriculum),
            "ascending horizons": partial(_ascending, made),
        }
    )


def _findings(checks: Mapping[str, Callable[[], str]]) -> Iterator[Finding]:
    for name, check in checks.items():
        try:
            yield Finding(name, check())
        except Exception as problem:  # noqa: BLE001 - any error of the extension is a finding
            yield Finding(name, f"raised {problem!r}")


def _round_trip(overrides: Mapping[str, Any]) -> str:
    experiment = load_recipe(RECIPE, overrides)
    again = Experiment.model_validate_json(experiment.model_dump_json())
    if again == experiment:
        return ""
    return "a recipe changes when it is written as JSON and read; give each field a JSON type"


def _loads_torch(overrides: Mapping[str, Any]) -> str:
    code = f"from configs.recipe import load_recipe; import json, sys; load_recipe({RECIPE!r}, json.loads(sys.argv[1]))"
    command = [
        sys.executable,
        "-c",
        f"{code}; sys.exit('torch' in sys.modules)",
        json.dumps(dict(overrides)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return done.stderr.strip() or "its module imports torch; import it in functions"


def _classes(algorithm: Algorithm) -> str:
    from tasks.training.implementations import batches_class, trainer_class

    trainer_class(algorithm)
    if not callable(batches_class(algorithm)):
        return "batches returned an object; return its class"
    return ""


def two_armed() -> list[Trajectory]:
    """Return groups of episodes with one action each, half of them good and half bad."""
    episodes = []
    for group in range(GROUPS):
        for member in range(MEMBERS):
            token = GOOD if member % 2 == 0 else BAD
            turn = Turn([token], [-0.6931], "act", reward=float(token == GOOD))
            outcome = Outcome.SUCCESS if token == GOOD else Outcome.FINISHED
            episodes.append(
                Trajectory(
                    "two-armed",
                    group,
                    group,
                    member,
                    0,
                    1,
                    0,
                    "check",
                    prompt=[0],
                    turns=[turn],
                    outcome=outcome,
                )
            )
    return episodes


def _advantages(algorithm: PolicyGradient) -> tuple[Any, Any, list[Trajectory]]:
    """Return the advantages of the two-armed episodes, and their experience."""
    import torch

    from tasks.training.algorithms.table import advantages
    from tasks.training.experience import experience_of

    episodes = two_armed()
    experience = experience_of(episodes)
    if algorithm.value_function() is not None:
        experience = replace(
            experience, values=torch.zeros(experience.policy_mask.shape, dtype=torch.float64)
        )
    if algorithm.kl_in == "reward":
        # The reference takes the good action with probability 0.9, the policy with 0.5.
        gaps = [[math.log(0.5 / (0.9 if t.turns[0].tokens == [GOOD] else 0.1))] for t in episodes]
        penalties = algorithm.kl_coefficient * torch.tensor(gaps, dtype=torch.float64)
        experience = replace(experience, penalties=penalties)
    return advantages(algorithm, experience), experience, episodes


def _shape(algorithm: PolicyGradient) -> str:
    found, experience, _ = _advantages(algorithm)
    mask = experience.policy_mask
    if found.shape != mask.shape:
        return f"advantages have the shape {tuple(found.shape)}; return {tuple(mask.shape)}, as experience.policy_mask"
    if not found.isfinite().all():
        return "an advantage is not finite; guard divisions by a standard deviation of 0"
    if not found[~mask].any():
        return ""
    return "an advantage outside experience.policy_mask is not 0; multiply by the mask"


def _deterministic(algorithm: PolicyGradient) -> str:
    first, second = _advantages(algorithm)[0], _advantages(algorithm)[0]
    if bool((first == second).all()):
        return ""
    return "two calls give different advantages; use no random numbers"


def _direction(algorithm: PolicyGradient) -> str:
    """The gradient of the good action's log-probability, for a uniform policy over two actions."""
    found, _, episodes = _advantages(algorithm)
    signs = [1.0 if t.turns[0].tokens == [GOOD] else -1.0 for t in episodes]
    slope = sum(sign * float(row.sum()) for sign, row in zip(signs, found, strict=True))
    if slope > 0:
        return ""
    return (
        f"the update makes the better of two actions less likely (slope {slope:g}); check the sign"
    )


_ADVANTAGE_CHECKS: dict[str, Callable[[PolicyGradient], str]] = {
    "advantages per token": _shape,
    "determinism": _deterministic,
    "direction on two actions": _direction,
}


def _selection(algorithm: Imitation) -> str:
    from tasks.training.algorithms.table import select

    pool, size = two_armed(), 2 * MEMBERS
    chosen, again = (select(algorithm, pool, 0, size, seed=0) for _ in range(2))
    if [id(t) for t in chosen] != [id(t) for t in again]:
        return "two calls of batch select different trajectories; derive random numbers from seed and step"
    if len(chosen) != size:
        return f"batch selects {len(chosen)} of {size} trajectories; return as many as `size`"
    return "" if any(t.succeeded for t in chosen) else "batch selects no success"


def _horizons(curriculum: Curriculum, steps: Iterable[int] = range(STEPS)) -> list[int]:
    return [curriculum.horizon_at(step, Training(STEPS)) for step in steps]


def _positive(curriculum: Curriculum) -> str:
    wrong = {
        step: horizon
        for step, horizon in enumerate(_horizons(curriculum))
        if not isinstance(horizon, int) or horizon < 1
    }
    if wrong:
        return (
            f"horizon_at({next(iter(wrong))}) is {next(iter(wrong.values()))!r}; return an int of at "
            "least 1"
        )
    return ""


def _pure(curriculum: Curriculum, fresh: Curriculum) -> str:
    forwards = _horizons(curriculum)
    backwards = _horizons(fresh, reversed(range(STEPS)))[::-1]
    if forwards == backwards:
        return ""
    return "the horizon of a step depends on earlier calls; use only the step and `training`"


def _ascending(curriculum: Curriculum) -> str:
    horizons = _horizons(curriculum)
    if not curriculum.ascending or horizons == sorted(horizons):
        return ""
    step = next(i for i, (a, b) in enumerate(pairwise(horizons), 1) if b < a)
    return f"the horizon falls at step {step}; set the class variable `ascending = False` if this is intended"
