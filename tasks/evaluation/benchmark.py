"""Evaluation results: estimates computed from trajectories on held-out tasks."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from tasks.evaluation.behaviour import answer_sources, repeated_share
from tasks.evaluation.bootstrap import bootstrap_mean
from tasks.evaluation.statistics import (
    UNKNOWN,
    Estimate,
    Number,
    Tallies,
    Tally,
    pass_all_k,
    pass_at_k,
    success_rate,
    widest_success_rate,
)
from tasks.files import replace_file
from tasks.rollout.trajectory import Outcome, Trajectory, refused_share
from tasks.rollout.trajectory_parquet import TrajectoryFileError, read_trajectories


class EvaluationFileError(Exception):
    """A file does not hold an evaluation. The message names the file and the reason."""


class IncompleteEvaluationError(Exception):
    """Episodes of an evaluation are missing, so its figures cannot be compared or published.

    Attributes:
        missing: Maps the label of each incomplete evaluation to the number of its missing episodes.
    """

    def __init__(self, message: str, missing: Mapping[str, int]) -> None:
        super().__init__(message)
        self.missing = dict(missing)


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One measurement of the policy.

    Episodes that failed in the infrastructure are missing. They are not a random sample: deadlines
    and lost answers end long episodes more often, and long episodes fail more often. Therefore an
    incomplete evaluation has no estimates: `success` and `reward` are unknown (nan), the other
    means are nan, and the breakdowns are empty. It has `bounds` instead.

    Attributes:
        label: Label of the measurement, e.g. "start" or "phase 2".
        step: Training steps that the policy had taken.
        horizon: Turn limit of the evaluation.
        scored: Number of episodes that count.
        failed: Number of episodes with an infrastructure fault. 0 means that the evaluation is
            complete.
        success: Mean over tasks of the share of successes.
        reward: Mean over tasks of the mean episode reward, with a bootstrap interval over tasks.
        turns: Mean turns per episode. nan if none was scored.
        truncated: Share of the episodes cut by the horizon or a token budget. nan if none was
            scored.
        pass_at: Maps k to pass@k, where only success counts.
        by_tag: Maps a tag to success over the tasks that carry it, e.g. the depth of a goal.
        tallies: Maps the task index to successes and scored episodes, for paired comparisons.
        pass_all: Maps k to pass^k, the probability that all of k samples succeed.
        tokens: Mean tokens that the policy wrote per episode. nan if no tokens are recorded.
        malformed: Share of the turns whose message held no readable action. nan without turns.
        refused: Share of the turns whose action the world refused. nan if its server does not
            report it.
        repeated: Share of the turns whose action the episode had before. nan without turns.
        answers_from: Shares of answers by the passage that holds them, see `answer_sources`.
        rewards: Maps the task index to its mean reward.
        missing: Maps the task index to its number of missing episodes. Only tasks with at least
            one.

    Raises:
        ValueError: `failed` is not the sum of `missing`.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    label: str
    step: int
    horizon: int
    scored: int
    failed: int
    success: Estimate
    reward: Estimate
    turns: Number
    truncated: Number
    pass_at: dict[int, Estimate] = field(default_factory=dict)
    by_tag: dict[str, Estimate] = field(default_factory=dict)
    tallies: dict[int, Tally] = field(default_factory=dict)
    pass_all: dict[int, Estimate] = field(default_factory=dict)
    tokens: Number = math.nan
    malformed: Number = math.nan
    refused: Number = math.nan
    repeated: Number = math.nan
    answers_from: dict[str, float] = field(default_factory=dict)
    rewards: dict[int, float] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.failed != sum(self.missing.values()):
            raise ValueError(
                f"failed is {self.failed}, but missing holds {sum(self.missing.values())} episodes"
            )

    @property
    def complete(self) -> bool:
        """Whether every planned episode was scored."""
        return self.failed == 0

    @property
    def tasks(self) -> list[int]:
        """The tasks of the evaluation, including those without a scored episode."""
        return sorted({*self.tallies, *self.missing})

    @property
    def bounds(self) -> tuple[Estimate, Estimate]:
        """Success if all missing episodes had failed, and if all had succeeded, with intervals.

        The interval of the complete evaluation lies between the outer ends of the two intervals
        (see `widest_success_rate`).
        """
        low, high = dict(self.tallies), dict(self.tallies)
        for task, missing in self.missing.items():
            successes, samples = self.tallies.get(task, Tally(0, 0))
            low[task] = Tally(successes, samples + missing)
            high[task] = Tally(successes + missing, samples + missing)
        return widest_success_rate(low), widest_success_rate(high)

    def metrics(self) -> dict[str, float]:
        """Return the figures for the tracker, with names that begin with "evaluation/".

        An incomplete evaluation has only its bounds and counts.
        """
        counts = {"episodes": self.scored, "failed_episodes": self.failed}
        if not self.complete:
            low, high = self.bounds
            bounds = {
                "success_if_missing_failed": low.value,
                "success_if_missing_succeeded": high.value,
            }
            return {
                f"evaluation/{name}": float(value) for name, value in {**bounds, **counts}.items()
            }
        named = {"success": self.success, "reward": self.reward}
        named |= {f"pass_at_{k}": estimate for k, estimate in self.pass_at.items()}
        named |= {f"pass_all_{k}": estimate for k, estimate in self.pass_all.items()}
        named |= {f"success_{tag}": estimate for tag, estimate in self.by_tag.items()}
        figures = {name: estimate.value for name, estimate in named.items()}
        figures |= {
            "success_low": self.success.low,
            "success_high": self.success.high,
            "tokens": self.tokens,
            "malformed_share": self.malformed,
            "refused_share": self.refused,
            "repeated_share": self.repeated,
            **{f"answers_from_{source}": each for source, each in self.answers_from.items()},
            "turns": self.turns,
            "truncated": self.truncated,
            **counts,
        }
        return {f"evaluation/{name}": value for name, value in figures.items()}


_RESULTS = TypeAdapter(EvaluationResult)


def evaluate(
    trajectories: Sequence[Trajectory],
    *,
    label: str,
    step: int,
    horizon: int,
    tags: Mapping[int, str] | None = None,
) -> EvaluationResult:
    """Compute the result of an evaluation from its trajectories.

    pass@k is estimated for k = 1, 2, 4, ... up to the median number of samples per task, and for
    that number itself.

    Args:
        trajectories: Episodes of the evaluation in one environment, including failed ones.
        label: Label of the measurement.
        step: Training steps that the policy had taken.
        horizon: Turn limit of the episodes.
        tags: Maps the task index to the tag by which success is broken down. Tasks without a tag
            are left out of the breakdown.
    """
    scored = [each for each in trajectories if each.outcome is not Outcome.FAILED]
    episodes: dict[int, list[Trajectory]] = {}
    for each in scored:
        episodes.setdefault(each.task, []).append(each)
    tallies = {
        task: Tally(sum(each.succeeded for each in group), len(group))
        for task, group in sorted(episodes.items())
    }
    missing = Counter(each.task for each in trajectories if each.outcome is Outcome.FAILED)
    if missing:
        return EvaluationResult(
            label=label,
            step=step,
            horizon=horizon,
            scored=len(scored),
            failed=missing.total(),
            success=UNKNOWN,
            reward=UNKNOWN,
            turns=math.nan,
            truncated=math.nan,
            tallies=tallies,
            missing=dict(sorted(missing.items())),
        )
    turns = [turn for each in scored for turn in each.turns]
    tokens = sum(len(turn.tokens) for turn in turns)
    rewards = {
        task: fmean(each.reward for each in group) for task, group in sorted(episodes.items())
    }
    return EvaluationResult(
        label=label,
        step=step,
        horizon=horizon,
        scored=len(scored),
        failed=0,
        success=success_rate(tallies),
        reward=bootstrap_mean(rewards.values()),
        turns=fmean(len(each.turns) for each in scored) if scored else math.nan,
        truncated=fmean(each.outcome is Outcome.TRUNCATED for each in scored)
        if scored
        else math.nan,
        pass_at={k: pass_at_k(tallies, k) for k in _sample_numbers(tallies)},
        by_tag=_by_tag(tallies, tags or {}),
        tallies=tallies,
        pass_all={k: pass_all_k(tallies, k) for k in _sample_numbers(tallies)},
        tokens=tokens / len(scored) if tokens else math.nan,
        malformed=fmean(turn.malformed for turn in turns) if turns else math.nan,
        refused=refused_share(turns),
        repeated=repeated_share(scored),
        answers_from=answer_sources(scored),
        rewards=rewards,
    )


def incomplete_note(results: Iterable[EvaluationResult]) -> str:
    """Return the warning line above figures of incomplete evaluations.

    The text is empty if all are complete.
    """
    found = list(results)
    parts = [
        f"{each.label}: {each.failed} of {each.failed + each.scored}, tasks "
        f"{_first(list(each.missing))}"
        for each in found
        if not each.complete
    ]
    if not parts:
        return ""
    failed = sum(each.failed for each in found)
    planned = failed + sum(each.scored for each in found)
    return f"INCOMPLETE: {failed} of {planned} episodes are missing ({'; '.join(parts)})."


def check_complete(
    results: Iterable[EvaluationResult],
    what: str,
    fix: str = "Run the same command again to play the missing episodes.",
) -> None:
    """Raise an error if an evaluation is incomplete.

    Args:
        what: Operation that needs complete evaluations, e.g. "the comparison with runs/a".
        fix: Advice to the user.

    Raises:
        IncompleteEvaluationError: At least one of them is incomplete.
    """
    found = list(results)
    if note := incomplete_note(found):
        missing = {each.label: each.failed for each in found if not each.complete}
        raise IncompleteEvaluationError(
            f"{what} needs complete evaluations. {note} These episodes failed because of "
            f"infrastructure faults. {fix}",
            missing,
        )


def holds_evaluation(trajectories: Path, step: int, episodes: int) -> bool:
    """Return whether a file holds all episodes of an evaluation at `step`, none of them failed."""
    return len(kept_episodes(trajectories, step)) == episodes


def kept_episodes(trajectories: Path, step: int) -> list[Trajectory]:
    """Return the episodes at `step` in a file that need not be played again.

    The list is empty if there is no readable file.
    """
    try:
        played = read_trajectories(trajectories)
    except (FileNotFoundError, TrajectoryFileError):
        return []
    return [
        each
        for each in played
        if each.policy_version == step and each.outcome is not Outcome.FAILED
    ]


def write_evaluation(path: Path, result: EvaluationResult) -> None:
    """Write a result atomically as JSON. Unknown values (nan) become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(evaluation_tree(result), indent=1), durable=True)


def read_evaluation(path: Path) -> EvaluationResult:
    """Read a result.

    Raises:
        FileNotFoundError: The file does not exist.
        EvaluationFileError: The file does not hold an evaluation.
    """
    try:
        return evaluation_of(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise EvaluationFileError(
            f"{path} is not a valid evaluation file ({error!r}). Run the evaluation again to "
            "replace it."
        ) from error


def evaluation_tree(result: EvaluationResult) -> dict[str, Any]:
    """Convert a result for JSON. Unknown values (nan) become null."""
    tree: dict[str, Any] = json.loads(_RESULTS.dump_json(result))
    return tree


def evaluation_of(tree: Mapping[str, Any]) -> EvaluationResult:
    """Restore a result from the output of `evaluation_tree`.

    Raises:
        ValueError: The tree is no result.
    """
    return _RESULTS.validate_python(tree)


def _sample_numbers(tallies: Tallies) -> list[int]:
    counts = sorted(tally.samples for tally in tallies.values())
    most = counts[len(counts) // 2] if counts else 0
    powers = [2**i for i in range(most.bit_length())]
    return sorted({*powers, most}) if most else []


def _by_tag(tallies: Tallies, tags: Mapping[int, str]) -> dict[str, Estimate]:
    names = sorted({tags[task] for task in tallies if task in tags})
    return {
        name: success_rate(
            {task: tally for task, tally in tallies.items() if tags.get(task) == name}
        )
        for name in names
    }


def _first(tasks: Sequence[int]) -> str:
    return ", ".join(map(str, tasks[:5])) + (", ..." if len(tasks) > 5 else "")
