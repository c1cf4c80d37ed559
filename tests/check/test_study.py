"""Tests of studies: their file, the results of their runs, and tables computed by hand."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from scipy import stats

from configs.infrastructure import InfraSettings
from configs.recipe import RecipeError, load_recipe
from configs.study import Study, load_study, study_names
from environments.handshake import check_same
from flows.checks import check_study
from flows.collection_session import check_same_weights
from flows.commands.study import main, study_arguments
from flows.job import EvaluateJob, TrainJob, read_job, write_job
from flows.model_check import fit_experiment
from flows.recorded_weights import WEIGHTS
from flows.records import is_finished, lost_steps
from flows.requests import grid_of_run
from flows.scripted_policies import scripted_in_study
from flows.study import report
from flows.study_page import write_page
from flows.study_runs import StudyRuns
from tasks.evaluation.benchmark import EvaluationFileError, EvaluationResult, write_evaluation
from tasks.evaluation.multiple_comparisons import holm, median_time
from tasks.evaluation.seed_tests import equivalence_p
from tasks.evaluation.statistics import Tally, mean, success_rate
from tasks.evaluation.study_pictures import draw_measurements
from tasks.evaluation.study_report import (
    behaviour_section,
    beyond_sections,
    budget_section,
    family_section,
    findings,
    threshold_section,
)
from tasks.evaluation.study_results import (
    Axis,
    StudyRun,
    after,
    area,
    common_budget,
    compared,
    fall,
    on_common_steps,
    over_training,
    reached_at,
)
from tasks.evaluation.study_runs_file import read_runs, write_runs
from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.rollout.trajectory_parquet import TrajectoryFileError, write_trajectories
from tasks.tracking.run_folder import FINISHED, RunFileError, RunFolder
from tasks.training.checkpoint import publish

TREE: dict[str, Any] = {
    "name": "tried",
    "question": "Does it?",
    "recipe": "textcraft",
    "arms": {
        "long": {"curriculum": {"kind": "fixed", "horizon": 16}},
        "short": {"curriculum": {"kind": "fixed", "horizon": 6}},
    },
    "seeds": 3,
    "comparisons": [["long", "short"], ["long", "start"]],
}


def written(tmp_path: Path, **fields: Any) -> str:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(TREE | fields))
    return str(path)


@pytest.mark.parametrize("name", study_names())
def test_the_studies_of_the_project_are_valid_in_every_arm(name: str) -> None:
    study_arguments([name])
    assert load_study(name).comparisons


def test_a_seed_of_a_study_sets_all_seeds_of_the_recipe(tmp_path: Path) -> None:
    study = load_study(written(tmp_path))
    assert study.seeds == (0, 1, 2)
    for seed in study.seeds:
        long, short = (study.experiment(arm, seed) for arm in ("long", "short"))
        assert long.seeds == short.seeds
        assert (long.seeds.training, long.seeds.evaluation, long.seeds.starter) == (
            seed,
            seed,
            seed,
        )
        assert long.model_copy(update={"curriculum": short.curriculum}) == short
        assert long.name == "tried"
    assert load_study(written(tmp_path), {"seeds": [4]}).seeds == (4,)
    assert (
        load_study(written(tmp_path), {"seeds": 2}).fingerprint()
        != study.fingerprint()
        == load_study(written(tmp_path)).fingerprint()
    )


def test_the_word_seed_in_a_value_stands_for_the_seed_of_the_run(tmp_path: Path) -> None:
    study = load_study(written(tmp_path), {"overrides": {"policy.model": "starts/{seed}/{name}"}})
    assert [study.experiment("long", seed).policy.model for seed in study.seeds] == [
        f"starts/{seed}/{{name}}" for seed in study.seeds
    ]


def test_a_study_whose_seeds_are_measured_on_different_tasks_is_refused(tmp_path: Path) -> None:
    for seed in (0, 1):
        (tmp_path / f"tasks-{seed}.json").write_text(json.dumps([seed, 7]))
    tasks = {"overrides": {"evaluation.tasks": f"{tmp_path}/tasks-{{seed}}.json"}, "seeds": 2}
    with pytest.raises(RecipeError, match=r"evaluation\.tasks"):
        load_study(written(tmp_path, **tasks))
    load_study(written(tmp_path, **tasks | {"seeds": [1]}))


def test_a_study_whose_runs_end_without_a_last_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"algorithm\.on_collapse"):
        load_study(written(tmp_path, overrides={"algorithm.on_collapse": "stop"}))


def test_all_rl_methods_of_the_study_use_the_same_loss_aggregation() -> None:
    study = load_study("methods")
    algorithms = [study.experiment(arm, 0).algorithm for arm in study.arms]
    assert len({getattr(a, "loss_aggregation", None) for a in algorithms} - {None}) == 1
    assert len({a.name for a in algorithms}) == 8


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"comparisons": [["long", "medium"]]}, ["comparisons", "'medium'", "long", "short"]),
        ({"comparisons": [["start", "long"]]}, ["comparisons", "'start'"]),
        ({"seeds": [1, 1]}, ["seeds", "[1, 1]"]),
        ({"tuning_seeds": [2, 7]}, ["seeds", "tuning_seeds", "[2]"]),
        ({"smallest_effect": 0}, ["smallest_effect"]),
        ({"arms": {"start": {}}, "comparisons": []}, ["arms", "'start'"]),
        (
            {"arms": {"a": {"algorithm.stps": 3}}, "comparisons": []},
            ["arm 'a'", "algorithm.stps", "'steps'"],
        ),
        (
            {"arms": {"a": {}, "b": {"evaluation.horizon": 4}}, "comparisons": []},
            ["'a'", "'b'", "evaluation.horizon"],
        ),
        ({"overrides": {"seeds.starter": 0}}, ["overrides", "seeds.starter"]),
        ({"arms": {"a": {"name": "other"}}, "comparisons": []}, ["a", "name"]),
        ({"recipe": "quickstrat"}, ["'quickstrat'", "'quickstart'"]),
        ({"endpoints": {}}, ["endpoints", "'endpoint'"]),
    ],
)
def test_an_invalid_study_is_refused_with_field_and_value(
    tmp_path: Path, fields: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_study(written(tmp_path, **fields))
    assert [word for word in named if word not in str(refused.value)] == []


def test_the_error_of_an_override_of_a_study_starts_with_the_override() -> None:
    with pytest.raises(RecipeError) as refused:
        load_study("horizons", {"sedes": 2})
    assert refused.value.codes == {"sedes": "extra_forbidden"}
    assert "sedes = 2" in str(refused.value).splitlines()[0]


def test_holm_equals_a_computation_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert math.isnan(holm([math.nan, 0.01])[0])
    assert holm([math.nan, 0.01])[1] == pytest.approx(
        0.02
    )  # the unknown value counts as one of two
    assert holm([]) == []


def test_median_time_includes_runs_that_never_reach_the_threshold() -> None:
    assert median_time([4.0, 2.0, 6.0], [9.0] * 3) == 4.0
    assert (
        median_time([4.0, None, 2.0, None], [9.0, 3.0, 9.0, 9.0]) == 4.0
    )  # Kaplan-Meier: 3/4 remain after time 2, and 3/8 after time 4, with two at risk
    assert math.isnan(median_time([2.0, None, None], [9.0] * 3))
    assert math.isnan(median_time([None, None], [9.0, 9.0]))
    times = [3.0, 5.0, 8.0, 9.0, 11.0, 14.0]
    found = median_time([*times, None, None], [20.0] * 6 + [10.0, 20.0])
    curve = stats.ecdf(stats.CensoredData(uncensored=times, right=[10.0, 20.0])).sf
    assert curve.evaluate(found) <= 0.5 < curve.evaluate(found - 0.01)
    # 8/10 * 7/8 * 5/7 is one half, which floating point misses
    half = [0.0, 0.0, 1.0, 3.0, 3.0, 4.0, 7.0, None, None, None]
    assert median_time(half, [9.0] * 8 + [3.0] * 2) == 3.0


def measured(
    step: int, successes: list[int], tags: dict[str, list[int]] | None = None
) -> EvaluationResult:
    tallies = {task: Tally(good, 4) for task, good in enumerate(successes)}
    by_tag = {
        tag: success_rate({task: tallies[task] for task in tasks})
        for tag, tasks in (tags or {}).items()
    }
    rewards = {task: good / 4 for task, good in enumerate(successes)}
    return EvaluationResult("x", step, 16, 4 * len(successes), 0, success_rate(tallies), mean([0.5]), 4.0, 0.1, {}, by_tag, tallies,
                            rewards=rewards)  # fmt: skip


def run(
    arm: str,
    seed: int,
    *evaluations: tuple[int, list[int]],
    turns: float = 5.0,
    tags: dict[str, list[int]] | None = None,
) -> StudyRun:
    steps = {
        step: {
            "rollout/turns": turns,
            "rollout/episodes": 10.0,
            "rollout/seconds": 6.0,
            "update/seconds": 3.0,
            "sync/seconds": 1.0,
            "rollout/cut_by_horizon": 0.9 - 0.1 * step,
            "rollout/zero_variance_groups": 0.5,
        }
        for step in range(1, evaluations[-1][0] + 1)
    }
    return StudyRun(
        arm, seed, [measured(step, successes, tags) for step, successes in evaluations], steps
    )


LONG = [
    run("long", seed, (0, [0, 0, 1]), (3, [2, 1, 1]), (6, [4, 3, 4 - seed]), turns=10)
    for seed in (0, 1)
]
SHORT = [
    run("short", seed, (0, [0, 0, 1]), (3, [1, 1, 1]), (6, [2, 2, 2]), turns=5) for seed in (0, 1)
]


def test_turns_and_seconds_are_counted_up_to_each_evaluation() -> None:
    assert LONG[0].positions("turns") == [0, 300, 600]
    assert SHORT[0].positions("seconds") == [0, 30, 60]
    assert common_budget({"long": LONG, "short": SHORT}, "turns") == 300


def test_a_rolled_back_run_counts_all_its_turns() -> None:
    fallen = replace(LONG[0], results=[*LONG[0].results[:2], measured(2, [1, 1, 1])])
    assert fallen.positions("turns") == [0, 300, 600]


def test_success_between_two_evaluations_is_interpolated() -> None:
    assert after(LONG[0], "turns", 150, "success") == pytest.approx({0: 0.25, 1: 0.125, 2: 0.25})
    assert after(LONG[0], "turns", 300, "success") == pytest.approx({0: 0.5, 1: 0.25, 2: 0.25})
    assert after(LONG[0], "turns", 9999, "reward") == pytest.approx({0: 1.0, 1: 0.75, 2: 1.0})
    assert after(LONG[0], "turns", 0, "success") == pytest.approx({0: 0.0, 1: 0.0, 2: 0.25})


def test_differences_are_paired_by_seed_and_by_common_task() -> None:
    found = compared(
        [({0: 1.0, 1: 0.5, 2: 1.0}, {0: 0.0, 1: 0.5}), ({0: 1.0, 1: 1.0}, {0: 1.0, 1: 0.5})]
    )
    assert found.seeds == pytest.approx((0.5, 0.25))
    assert found.estimate.value == pytest.approx(0.375)
    assert math.isnan(compared([]).estimate.value)


def test_thresholds_and_means_over_thirds_of_training() -> None:
    assert reached_at(LONG[0], "turns", 0.3) == 300
    assert reached_at(LONG[0], "turns", 0.95) is None
    twelve_of_15 = success_rate({task: Tally(3 if task < 2 else 2, 3) for task in range(5)})
    start, middle, end = LONG[0].results
    exactly = replace(LONG[0], results=[start, replace(middle, success=twelve_of_15), end])
    assert reached_at(exactly, "turns", 0.8) == 300
    assert over_training(LONG, "rollout/cut_by_horizon") == pytest.approx([0.75, 0.55, 0.35])
    assert over_training(LONG, "critic/explained_variance") == []
    recorded = {step: m | {"rollout/recorded_unused": 0.0} for step, m in LONG[0].steps.items()}
    assert replace(LONG[0], steps=recorded).spent("turns", 6) == 0
    unplayed = {
        step: m | {"rollout/episodes": 0.0 if step > 1 else 1.0}
        for step, m in LONG[0].steps.items()
    }
    assert replace(LONG[0], steps=unplayed).metric("rollout/cut_by_horizon") == {1: 0.8}
    assert over_training([replace(LONG[0], steps=unplayed)], "rollout/cut_by_horizon") == []


def study(**fields: Any) -> Study:
    return Study.model_validate(TREE | {"seeds": 2} | fields)


def test_all_named_comparisons_have_p_values_adjusted_together() -> None:
    [section] = family_section(study(), {"long": LONG, "short": SHORT})
    rows = {row[0]: row for row in section.rows}
    assert rows["long - short"][1].startswith(
        "+37.5 ["
    )  # (11 - 6) / 12 with seed 0, (10 - 6) / 12 with seed 1
    assert rows["long - start"][-1] == "2 of 2"
    found = section.data["long - short"]
    assert found["p"] == pytest.approx(0.5)  # two seeds have four sign flips
    assert found["p_holm"] == pytest.approx(1.0)  # twice as large, for two comparisons
    by_seed = stats.t.interval(0.95, 1, np.mean(found["seeds"]), stats.sem(found["seeds"]))
    assert (found["t_low"], found["t_high"]) == pytest.approx(by_seed)
    assert "p_equivalence" not in found
    assert "success after training" in section.note


def test_runs_of_two_arms_are_paired_by_seed() -> None:
    compares = study(comparisons=[("long", "short")])
    [section] = family_section(compares, {"long": LONG, "short": SHORT[1:]})
    assert section.data["long - short"]["difference"] == pytest.approx((10 - 6) / 12)  # seed 1


def test_the_smallest_effect_of_interest_adds_an_equivalence_test() -> None:
    [section] = family_section(study(smallest_effect=0.6), {"long": LONG, "short": SHORT})
    found = section.data["long - short"]
    assert found["p_equivalence"] == pytest.approx(equivalence_p(found["seeds"], 0.6))
    assert len(section.header) == len(section.rows[0])
    assert study(smallest_effect=0.6).fingerprint() == study().fingerprint()


def test_an_endpoint_at_equal_turns_uses_the_results_up_to_that_turn() -> None:
    [section] = family_section(study(endpoint={"at": "turns"}), {"long": LONG, "short": SHORT})
    assert section.data["long - short"]["difference"] == pytest.approx(
        (2 + 1 + 1 - 6) / 12
    )  # after 300 turns in both arms
    assert "after 300 environment turns" in section.note


def test_an_endpoint_over_training_is_the_area_under_the_curve_of_the_evaluations() -> None:
    falls = run("long", 0, (0, [0, 4, 4]), (10, [4, 4, 4]), (40, [0, 2, 4]))
    assert area(falls, "success") == pytest.approx(
        {0: (10 / 2 + 30 / 2) / 40, 1: (10 + 30 * 0.75) / 40, 2: 1.0}
    )
    assert fall(falls, "success") == pytest.approx(0.5)
    back = replace(falls, results=[*falls.results[:-1], replace(falls.results[-1], step=5)])
    assert area(back, "success") == area(falls, "success")  # a collapsed run is evaluated earlier
    spec = study(endpoint={"at": "area"}, comparisons=[("long", "start")])
    [section] = family_section(spec, {"long": [falls]})
    rises = (0.5, 0.8125 - 1, 0.0)
    assert section.data["long - start"]["difference"] == pytest.approx(sum(rises) / 3)
    titles = [each.title for each in findings(spec, {"long": [falls], "short": SHORT}, {})]
    assert "The curve of the evaluations" in titles


@pytest.mark.parametrize("endpoint", [{"at": "turns", "budget": 301}, {"at": "turns"}])
def test_arms_are_not_compared_after_more_turns_than_a_run_had(endpoint: dict[str, Any]) -> None:
    idle = [replace(each, steps={}) for each in SHORT] if "budget" not in endpoint else SHORT
    [section] = family_section(study(endpoint=endpoint), {"long": LONG, "short": idle})
    assert set(section.data) == {"not shown"}


def test_a_study_without_a_figure_at_its_endpoint_has_a_page(tmp_path: Path) -> None:
    spec = study(endpoint={"at": "turns", "budget": 301})
    page = write_page(spec, {"long": LONG, "short": SHORT}, tmp_path, {}, None)
    assert all(picture.is_file() for picture in page.pictures)


def test_the_page_has_every_table_and_separates_timings_from_findings(tmp_path: Path) -> None:
    tags = {"depth 1": [0, 1], "depth 2": [2]}
    runs = {
        arm: [replace(r, results=[measured(e.step, [t.successes for t in e.tallies.values()], tags) for e in r.results],
                      last={"deep, horizon 8": measured(6, [4, 4, 4])}, first={"deep, horizon 8": measured(0, [0, 1, 0])}) for r in of_arm]
        for arm, of_arm in {"long": LONG, "short": SHORT}.items()
    }  # fmt: skip
    made = study(thresholds=[0.4])
    scripted = {
        tasks: {"random valid action": measured(0, [0, 1, 2]), "oracle": measured(0, [4, 4, 4])}
        for tasks in ("one-command-test, 3 tasks, horizon 16", "deep, 3 tasks, horizon 8")
    }
    page = write_page(made, runs, tmp_path / "one", scripted, None)
    for title in (
        "Success before and after training",
        "Scripted policies on the same tasks",
        "Comparisons",
        "At 300 environment turns",
        "Further evaluations",
        "Comparisons on the further evaluations",
        "Environment turns to a success rate",
        "Training metrics",
        "Success after training by kind of task",
        "Training time",
        "At 1.0 minutes of training",
    ):
        assert f"### {title}" in page.markdown, title
    assert " 4 runs " in page.markdown
    assert "| policy | one-command-test, 3 tasks, horizon 16 |" in page.markdown
    assert "| random valid action | 25.0 % [" in page.markdown
    assert all(picture.read_bytes()[:4] == b"\x89PNG" for picture in page.pictures)

    def slower(each: StudyRun) -> StudyRun:
        return replace(
            each, steps={step: m | {"rollout/seconds": 99.0} for step, m in each.steps.items()}
        )

    write_page(
        made,
        {arm: [slower(r) for r in of_arm] for arm, of_arm in runs.items()},
        tmp_path / "two",
        scripted,
        None,
    )
    one, two = (
        json.loads((tmp_path / folder / "report.json").read_text()) for folder in ("one", "two")
    )
    assert one["findings"] == two["findings"]
    assert one["timings"] != two["timings"]


def test_a_policy_is_also_compared_with_its_start_at_temperature_0() -> None:
    warm, greedy = "deep, horizon 8, temperature 1", "deep, horizon 8, temperature 0"
    runs = [
        replace(
            r,
            first={warm: measured(0, [0, 1, 0]), greedy: measured(0, [2, 2, 2])},
            last={warm: measured(6, [3, 3, 3]), greedy: measured(6, [4, 4, 4])},
        )
        for r in LONG
    ]
    _, section = beyond_sections(study(comparisons=[["long", "start"]]), {"long": runs})
    found = {
        (title, cell): each["difference"]
        for title, of_cells in section.data.items()
        for cell, each in of_cells.items()
    }
    assert found == {
        ("long - start", warm): pytest.approx(8 / 12),
        ("long - start", greedy): pytest.approx(6 / 12),
        ("long - start at temperature 0", warm): pytest.approx(3 / 12),
    }


def test_the_report_compares_refused_and_repeated_turns_and_the_sources_of_answers() -> None:
    def behaving(each: StudyRun) -> StudyRun:
        before, after = (
            replace(result, refused=refused, repeated=0.5, answers_from={"passage 1": first})
            for result, refused, first in (
                (each.results[0], 0.25, 1.0),
                (each.results[-1], 0.1 * each.seed, 0.5),
            )
        )
        return replace(each, results=[before, *each.results[1:-1], after])

    [section] = behaviour_section({"long": [behaving(r) for r in LONG], "short": SHORT})
    assert section.data["refused turns"] == {"long": [0.25, pytest.approx(0.05)]}
    assert section.data["repeated turns"] == {"long": [0.5, 0.5]}
    assert section.data["answers from passage 1"] == {"long": [1.0, 0.5]}
    assert behaviour_section({"short": SHORT}) == []  # these runs have no such metrics


def test_the_page_of_an_unfinished_study_has_its_finished_runs(tmp_path: Path) -> None:
    assert "0 of 4" in write_page(study(), {"long": [], "short": []}, tmp_path, {}, None).markdown
    page = write_page(study(), {"long": LONG, "short": SHORT[:1]}, tmp_path, {}, None)
    assert "3 of 4" in page.markdown
    assert "| long - short |" in page.markdown


def test_p_values_are_unknown_until_all_runs_are_finished() -> None:
    values = ("p", "p_holm", "p_equivalence")
    for n_runs, known in ((1, False), (2, True)):
        runs = {"long": LONG[:n_runs], "short": SHORT[:n_runs]}
        (found,) = family_section(study(smallest_effect=0.02), runs)
        assert [found.data["long - short"][each] is not None for each in values] == [known] * 3


def test_a_study_of_rewards_has_tables_of_rewards(tmp_path: Path) -> None:
    """Use tasks that are only partly completed, so that no episode counts as a success."""

    def half(each: StudyRun) -> StudyRun:
        results = [
            replace(e, tallies={t: Tally(0, 4) for t in e.tallies}, reward=mean(e.rewards.values()))
            for e in each.results
        ]
        return replace(
            each, results=results, first={"there": results[0]}, last={"there": results[-1]}
        )

    runs = {"long": [half(r) for r in LONG], "short": [half(r) for r in SHORT]}
    page = write_page(study(endpoint={"measure": "reward"}), runs, tmp_path, {}, None)
    assert "| arm | seeds | mean reward before | mean reward after |" in page.markdown
    assert "| long - short | +0.375 [" in page.markdown
    beyond = page.markdown.split("### Comparisons on the further evaluations")[1]
    assert "| there | long - start | +0.792 [" in beyond  # (11/12 - 1/12 + 10/12 - 1/12) / 2


def coarse(each: StudyRun) -> StudyRun:
    return replace(each, results=[each.results[0], each.results[-1]])


@pytest.mark.parametrize("axis", ["turns", "seconds"])
def test_arms_evaluated_after_different_steps_are_not_compared_by_turns_or_time(axis: Axis) -> None:
    spec, alike, unlike = (
        study(thresholds=[0.4]),
        {"long": LONG, "short": SHORT},
        {"long": LONG, "short": [*map(coarse, SHORT)]},
    )
    for section in (budget_section, threshold_section):
        [shown], [left_out] = section(spec, alike, axis), section(spec, unlike, axis)
        assert shown.rows
        assert not left_out.rows
        assert "- long: 0, 3, 6\n- short: 0, 6" in left_out.data["not shown"]
        assert "- long: 0, 3, 6\n- short: 0, 6" in left_out.markdown()


def test_runs_evaluated_only_at_their_ends_have_no_threshold_times() -> None:
    spec, ends = (
        study(thresholds=[0.4]),
        {arm: [*map(coarse, runs)] for arm, runs in {"long": LONG, "short": SHORT}.items()},
    )
    [section] = threshold_section(spec, ends, "turns")
    assert not section.rows
    assert section.data["not shown"]
    [section] = budget_section(spec, ends, "turns")  # both arms have the same steps
    assert section.rows


def test_an_endpoint_at_equal_turns_uses_the_common_evaluations_of_both_runs() -> None:
    spec = study(endpoint={"at": "turns"})
    [both_coarse] = family_section(
        spec, {"long": [*map(coarse, LONG)], "short": [*map(coarse, SHORT)]}
    )
    [one_coarse] = family_section(spec, {"long": LONG, "short": [*map(coarse, SHORT)]})
    [fine] = family_section(spec, {"long": LONG, "short": SHORT})
    assert (
        budget_section(spec, {"long": LONG, "short": SHORT}, "turns") == []
    )  # the endpoint already has this comparison
    assert (
        one_coarse.data["long - short"]
        == both_coarse.data["long - short"]
        != fine.data["long - short"]
    )
    longer = run("short", 0, (0, [0, 0, 1]), (2, [1, 1, 1]), (3, [1, 1, 1]), (9, [2, 2, 2]))
    assert [[r.step for r in each.results] for each in on_common_steps(LONG[0], longer)] == [
        [0, 3, 6],
        [0, 3, 9],
    ]


@pytest.mark.parametrize(("at", "line"), [([0, 6], "None"), ([0, 3, 6], "-")])
def test_two_evaluations_are_drawn_as_two_points(at: list[int], line: str) -> None:
    panel = Figure().subplots()
    draw_measurements(panel, at, [mean([0.1, 0.2, 0.4])] * len(at), "an arm", offset=3)
    [drawn] = [each for each in panel.lines if each.get_marker() == "o"]
    assert drawn.get_linestyle() == line
    assert list(drawn.get_xdata()) == at
    assert panel.get_xlim()[0] <= at[0] < at[-1] <= panel.get_xlim()[1]
    assert panel.get_ylim()[0] <= mean([0.1, 0.2, 0.4]).low
    assert panel.containers[0].has_yerr == (len(at) == 2)


def test_findings_are_deterministic() -> None:
    runs = {"long": LONG, "short": SHORT}
    assert [s.data for s in findings(study(), runs, {})] == [
        s.data for s in findings(study(), runs, {})
    ]


def test_the_page_is_written_from_the_stored_runs_without_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTGYM_RUNS", str(tmp_path / "runs"))
    name = written(tmp_path, seeds=2)
    made = load_study(name)
    runs = {
        "long": [
            replace(
                r, last={"deep": measured(6, [4, 4, 4])}, first={"deep": measured(0, [0, 1, 0])}
            )
            for r in LONG
        ],
        "short": SHORT,
    }
    infrastructure = InfraSettings(runs=tmp_path / "runs")
    keys = StudyRuns(made, infrastructure)
    folder = Path("docs") / "evidence" / "tried"
    write_runs(
        folder / "runs.jsonl.gz",
        {keys.key(arm, r.seed): r for arm, of_arm in runs.items() for r in of_arm},
    )
    kept = (folder / "runs.jsonl.gz").read_bytes()
    whole = write_page(
        made, runs, tmp_path / "whole", scripted_in_study(made, runs, infrastructure), None
    )
    assert re.search(
        r"\| policy \| one-command-validation, \d+ tasks, horizon 16 \|", whole.markdown
    )
    lines = [json.loads(line) for line in gzip.decompress(kept).splitlines()]
    for facts, _ in lines:
        del facts["recipe"]["keep_checkpoints"]  # as if this field was added later
    (folder / "runs.jsonl.gz").write_bytes(
        gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode())
    )
    assert report(name, {}).absolute() == folder.absolute()
    assert (folder / "report.md").read_text() == whole.markdown
    assert (folder / "report.json").read_text() == (tmp_path / "whole" / "report.json").read_text()
    assert (folder / "runs.jsonl.gz").read_bytes() == kept
    assert (
        len(list((folder.parent / "scripted").iterdir())) == 6
    )  # the stored results of the policies, which are not played again

    with pytest.raises(EvaluationFileError, match="AGENTGYM_RUNS"):
        report(name, {"overrides": {"algorithm.steps": 7}})  # these runs are not stored
    assert (folder / "report.md").read_text() == whole.markdown
    assert (folder / "runs.jsonl.gz").read_bytes() == kept


def test_stored_runs_are_found_without_their_model(tmp_path: Path) -> None:
    model = {"overrides": {"policy.model": str(tmp_path / "deleted")}}
    name = written(tmp_path, seeds=1)
    made = load_study(name, model)
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    assert runs.found({runs.key("long", 0): LONG[0]})["long"] == LONG[:1]
    with pytest.raises(RecipeError, match="deleted"):
        check_study(made, InfraSettings(runs=tmp_path / "runs"))
    words = [name, "--overrides", json.dumps(model["overrides"])]
    assert study_arguments([*words, "--report"])[0].report
    with pytest.raises(SystemExit, match="deleted"):
        study_arguments(words)


def test_an_unreadable_file_of_runs_is_refused_by_name(tmp_path: Path) -> None:
    assert read_runs(tmp_path / "none") == {}
    (tmp_path / "runs.jsonl.gz").write_text("not compressed")
    with pytest.raises(EvaluationFileError, match=r"runs\.jsonl\.gz"):
        read_runs(tmp_path / "runs.jsonl.gz")


def test_only_the_given_seeds_of_a_study_are_run(tmp_path: Path) -> None:
    file = written(tmp_path, seeds=3)
    made = load_study(file)
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    started = {next(chain).what for chain in runs.commands([2])}
    assert started == {"long, seed 2: training", "short, seed 2: training"}
    with pytest.raises(RecipeError, match="only_seeds"):
        runs.commands([2, 3])
    with pytest.raises(SystemExit, match="only_seeds"):
        study_arguments([str(file), "--only-seeds", "3"])
    with pytest.raises(SystemExit) as refused:
        study_arguments([str(file), "--only-seeds", "2", "--report"])
    assert refused.value.code == 2


def test_models_of_other_seeds_may_be_on_other_machines(tmp_path: Path, policy: str) -> None:
    shutil.copytree(policy, tmp_path / "start-2")
    file = written(tmp_path, seeds=3)
    model = {"overrides": {"policy.model": str(tmp_path / "start-{seed}")}}
    words = [str(file), "--overrides", json.dumps(model["overrides"])]
    assert study_arguments([*words, "--only-seeds", "2"])[0].only_seeds == [2]
    with pytest.raises(SystemExit, match="seed 0"):
        study_arguments(words)
    with pytest.raises(RecipeError, match="seed 1"):
        check_study(load_study(str(file), model), InfraSettings(runs=tmp_path / "runs"), [2, 1])


def test_each_run_trains_the_recipe_of_its_arm(tmp_path: Path) -> None:
    made = load_study(written(tmp_path, seeds=1))
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    commands = {
        command.what: command
        for chain in runs.commands()
        if (command := next(chain, None)) is not None
    }
    assert set(commands) == {"long, seed 0: training", "short, seed 0: training"}
    module, file = commands["short, seed 0: training"].words
    assert module == "flows.job"
    job = read_job(Path(file))
    assert isinstance(job, TrainJob)
    assert load_recipe(job.recipe, job.overrides) == made.experiment("short", 0)
    assert runs.found() == {"long": [], "short": []}


def test_fields_of_an_arm_override_the_study_and_its_run_trains_the_registered_recipe(
    tmp_path: Path,
) -> None:
    (tmp_path / "models" / "0").mkdir(parents=True)
    given = {
        "overrides": {"curriculum": {"kind": "stepwise", "horizons": [2, 4], "every": 6}},
        "arms": {
            "slow": {
                "curriculum.every": 9,
                "environment.train_tasks": "searchqa-ours-400-second-half.json",
            },
            "fast": {"curriculum.every": 3, "policy.model": f"{tmp_path}/models/{{seed}}"},
        },
        "comparisons": [],
        "seeds": 1,
    }
    made = load_study(written(tmp_path, **given))
    every = {arm: made.experiment(arm, 0).curriculum.model_dump()["every"] for arm in made.arms}
    assert every == {"slow": 9, "fast": 3}
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    for arm, chain in zip(made.arms, runs.commands(), strict=True):
        job = read_job(Path(next(chain).words[1]))
        assert isinstance(job, TrainJob)
        trained = load_recipe(job.recipe, job.overrides)
        assert trained.fingerprint() == made.experiment(arm, 0).fingerprint()
        assert job.overrides == {"curriculum.every": every[arm]}


def test_an_arm_does_not_change_the_section_that_all_arms_share(tmp_path: Path) -> None:
    shared = {"curriculum": {"kind": "stepwise", "horizons": [2, 4], "every": 6}}
    made = load_study(
        written(
            tmp_path,
            overrides=shared,
            arms={"paper": {}, "slow": {"curriculum.every": 9}},
            comparisons=[],
            seeds=1,
        )
    )
    every = {arm: made.experiment(arm, 0).curriculum.model_dump()["every"] for arm in made.arms}
    assert every == {"paper": 6, "slow": 9}


def test_arms_with_other_tasks_are_not_compared(tmp_path: Path) -> None:
    arms = {
        "ours": {"environment.rules": "ours"},
        "theirs": {"environment.rules": "agentgym", "policy.action_format": "bare"},
    }
    with pytest.raises(RecipeError, match=r"environment\.rules"):
        load_study(written(tmp_path, arms=arms, comparisons=[["theirs", "ours"]], seeds=1))
    load_study(written(tmp_path, arms=arms, comparisons=[["theirs", "start"]], seeds=1))


def test_two_arms_of_the_same_recipe_are_refused(tmp_path: Path) -> None:
    arms = {name: {"curriculum": {"kind": "fixed", "horizon": 6}} for name in ("one", "two")}
    with pytest.raises(RecipeError, match=r"'one'.*'two'"):
        load_study(written(tmp_path, arms=arms, comparisons=[]))


def finished_runs(runs: Path, study: Study, starts: dict[str, str]) -> dict[str, RunFolder]:
    """Write a finished run with seed 0 for each arm, which started from the arm's policy."""
    folders = {}
    for arm, start in starts.items():
        folder = folders[arm] = RunFolder(runs, fit_experiment(study.experiment(arm, 0)))
        write_evaluation(folder.evaluation("start"), measured(0, [1, 2]))
        (folder.path / "trainer.json").write_text(json.dumps({"policy": start}))
        for step in range(1, folder.experiment.algorithm.steps + 1):
            folder.add_metrics(step, {"rollout/success": 0.5})
        folder.mark_done(FINISHED)
    return folders


def test_a_finished_run_without_all_its_metrics_is_not_complete(tmp_path: Path) -> None:
    made = load_study(written(tmp_path, seeds=1))
    (folder,) = finished_runs(tmp_path / "runs", made, {"long": "model"}).values()
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    kept = {runs.key("long", 0): LONG[0]}
    assert runs.found(kept)["long"] != [LONG[0]]
    steps = folder.metrics()
    del steps[3]
    folder.replace_metrics(steps)
    assert lost_steps(folder) == [3]
    assert not is_finished(folder)
    assert runs.found()["long"] == []
    assert runs.found(kept)["long"] == [LONG[0]]


def test_a_study_refuses_runs_that_began_with_different_weights_of_one_model(
    tmp_path: Path,
) -> None:
    made = load_study(written(tmp_path, seeds=1))
    starts = dict.fromkeys(made.arms, "model")
    long, short = finished_runs(tmp_path / "runs", made, starts).values()
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    for folder in (long, short):
        (folder.path / WEIGHTS).write_text("first\n")
    found = runs.found()
    assert [run.weights for of_arm in found.values() for run in of_arm] == ["first"] * 2
    assert "`first` (seed 0)" in write_page(made, found, tmp_path / "page", {}, None).markdown
    write_runs(tmp_path / "kept", {runs.key("long", 0): found["long"][0]})
    assert read_runs(tmp_path / "kept")[runs.key("long", 0)].weights == "first"
    (short.path / WEIGHTS).write_text("second\n")
    with pytest.raises(EvaluationFileError):
        runs.found()


def test_a_study_is_not_registered_before_its_first_run_if_a_run_exists(tmp_path: Path) -> None:
    made = load_study(written(tmp_path, seeds=1))
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    assert not runs.are_begun()
    finished_runs(tmp_path / "runs", made, {"long": "model"})
    assert runs.are_begun()


@pytest.mark.parametrize(
    ("starts", "fields", "n_first"),
    [
        (("a/step-000040", "a/step-000040"), {}, 1),
        (("a/step-000040", "b/step-000040"), {}, 2),
        (("a/step-000040", "a/step-000040"), {"rollout.turn_tokens": 9}, 2),
        (("a/step-000040", "a/step-000040"), {"policy.instruction": True}, 2),
    ],
)
def test_arms_share_the_evaluation_of_the_first_policy_only_if_it_is_the_same(
    tmp_path: Path, starts: tuple[str, str], fields: dict[str, Any], n_first: int
) -> None:
    arms = TREE["arms"] | {"short": TREE["arms"]["short"] | fields}
    made = load_study(written(tmp_path, seeds=1, arms=arms, beyond={"horizons": [2]}))
    finished_runs(tmp_path / "runs", made, dict(zip(made.arms, starts, strict=True)))
    chains = StudyRuns(made, InfraSettings(runs=tmp_path / "runs")).commands()
    jobs = [read_job(Path(command.words[1])) for chain in chains for command in chain]
    evaluated = [job for job in jobs if isinstance(job, EvaluateJob)]
    assert len({job.folder for job in evaluated}) == len(evaluated) == n_first + 2
    models = [job.grid.source.model for job in evaluated]
    assert {*starts} <= {*models}
    assert sum(model in starts for model in models) == n_first


def test_a_study_refuses_runs_on_different_versions_of_a_world(tmp_path: Path) -> None:
    made = load_study(written(tmp_path, seeds=1))
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    current = runs.key("short", 0)
    starts = dict.fromkeys(made.arms, "model")
    long, short = finished_runs(tmp_path / "runs", made, starts).values()
    for folder in (long, short):
        check_same(folder.path / "world", "textcraft old", "run")
    assert [len(of_arm) for of_arm in runs.found().values()] == [1, 1]
    (short.path / "world").write_text("textcraft new\n")
    with pytest.raises(EvaluationFileError) as refused:
        runs.found()
    assert all(str(folder.path) in str(refused.value) for folder in (long, short))
    shutil.rmtree(short.path)
    assert runs.found()["short"] == []
    with pytest.raises(EvaluationFileError, match=re.escape(str(long.path))):
        runs.found({current: SHORT[0]})


def test_further_evaluations_on_another_version_of_a_world_are_refused(tmp_path: Path) -> None:
    made = load_study(written(tmp_path, seeds=1, beyond={"horizons": [2]}))
    (folder,) = finished_runs(tmp_path / "runs", made, {"long": "model"}).values()
    check_same(folder.path / "world", "textcraft new", "run")
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    [long, *_] = runs.commands()
    for command in long:
        job = read_job(Path(command.words[1]))
        assert isinstance(job, EvaluateJob)
        write_evaluation(job.folder / "cell" / "evaluation.json", measured(0, [1, 2]))
        (job.folder / "evaluation.json").write_text(json.dumps({"cells": {"x": "cell"}}))
        last = job.folder
    assert len(runs.found()["long"]) == 1
    check_same(last / "cell" / "world", "textcraft old", "collection")
    with pytest.raises(EvaluationFileError, match=re.escape(str(last))):
        runs.found()


def test_further_evaluations_of_weights_that_were_trained_again_do_not_count(
    tmp_path: Path,
) -> None:
    made = load_study(written(tmp_path, seeds=1, beyond={"horizons": [2]}))
    (folder,) = finished_runs(tmp_path / "runs", made, {"long": "model"}).values()

    def train(weights: bytes) -> None:
        new = tmp_path / "new"
        new.mkdir()
        (new / "model.safetensors").write_bytes(weights)
        publish(new, folder.path / "checkpoints", 6, folder.fingerprint)

    train(b"first")
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    for command in runs.commands()[0]:
        job = read_job(Path(command.words[1]))
        assert isinstance(job, EvaluateJob)
        write_evaluation(job.folder / "cell" / "evaluation.json", measured(0, [1, 2]))
        check_same_weights(job.folder / "cell", job.grid.source)
        (job.folder / "evaluation.json").write_text(json.dumps({"cells": {"x": "cell"}}))
    assert len(runs.found()["long"]) == 1
    train(b"second")
    assert runs.found()["long"] == []


def test_kept_episodes_are_not_replaced_by_those_of_an_incomplete_run(tmp_path: Path) -> None:
    made = load_study(written(tmp_path, seeds=1, beyond={"horizons": [2]}))
    (folder,) = finished_runs(tmp_path / "runs", made, {"long": "model"}).values()
    episode = Trajectory("textcraft", 0, 0, 0, 0, 16, 0, "x", outcome=Outcome.SUCCESS)
    write_trajectories(folder.evaluation("start").with_suffix(".parquet"), [episode])
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    assert runs.found({runs.key("long", 0): LONG[0]})["long"] == LONG[:1]
    assert runs.episodes(LONG[0]) == {}  # its further evaluations are on another machine


def test_the_key_of_a_run_has_the_version_of_the_world_that_it_was_measured_on(
    tmp_path: Path,
) -> None:
    made = load_study(written(tmp_path, seeds=1))
    runs = StudyRuns(made, InfraSettings(runs=tmp_path / "runs"))
    current = json.loads(runs.key("long", 0))
    (folder,) = finished_runs(tmp_path / "runs", made, {"long": "model"}).values()
    check_same(folder.path / "world", "textcraft old", "run")
    assert json.loads(runs.key("long", 0)) == current | {"world": "old"}
    (folder.path / "world").write_text("textcraft \n")  # AgentGym's servers report no version
    assert json.loads(runs.key("long", 0)) == current


def test_a_job_keeps_every_field_of_an_evaluation(tmp_path: Path) -> None:
    recipe = load_recipe(
        "textcraft",
        {
            "policy.conversation_start": [{"role": "user", "content": "Craft."}],
            "rollout.retries": 0,
        },
    )
    job = EvaluateJob(
        grid=grid_of_run(
            recipe, "runs/x/checkpoints/step-000001", tasks=((1, 2), "test"), n_tasks=None
        ),
        folder=tmp_path,
    )
    write_job(tmp_path / "job.json", job)
    assert read_job(tmp_path / "job.json") == job


@pytest.mark.parametrize("error", [EvaluationFileError, OSError, RunFileError, TrajectoryFileError])
def test_a_damaged_file_ends_a_report_with_one_message(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(name: str, overrides: dict[str, Any]) -> Path:
        raise error("turns.parquet")

    monkeypatch.setattr("flows.study.report", damaged)
    with pytest.raises(SystemExit, match=r"turns\.parquet"):
        main(["quickstart", "--report"])
