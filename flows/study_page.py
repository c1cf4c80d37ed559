"""The page of a study: the question, the tables, the pictures, and all figures as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.study import Study
from tasks.evaluation.benchmark import EvaluationResult
from tasks.evaluation.study_pictures import draw_mechanism, draw_study
from tasks.evaluation.study_registry import Registration
from tasks.evaluation.study_report import Section, family_section, findings, timings
from tasks.evaluation.study_results import Runs
from tasks.evaluation.tables import filled, markdown

CURVES, TRAINING = "success.png", "training.png"


@dataclass(frozen=True, slots=True)
class StudyPage:
    """The results of a study.

    Attributes:
        title: Its name and question.
    """

    title: str
    markdown: str
    pictures: tuple[Path, ...]


def write_page(
    study: Study,
    runs: Runs,
    folder: Path,
    scripted: Mapping[str, Mapping[str, EvaluationResult]],
    registration: Registration | None,
) -> StudyPage:
    """Write report.md, report.json and the pictures of the complete runs and scripted policies.

    In report.json, "findings" depends only on the seeds, so it is the same whenever and wherever
    the study runs. "timings" also depends on the machine.

    Args:
        scripted: Maps each list of measured tasks to the results of scripted policies on it.
        registration: What was registered before the first run. None: nothing was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = {arm: of_arm for arm, of_arm in runs.items() if of_arm}
    found, timed = (findings(study, whole, scripted), timings(study, whole)) if whole else ([], [])
    lines = [f"# {study.name}", filled(study.question), _setting(study)]
    lines += [_registered(registration), _progress(study, whole), *_starts(whole)]
    pictures: tuple[Path, ...] = ()
    if whole:
        shown = [section for section in family_section(study, whole) if section.rows]
        curves, training = folder / CURVES, folder / TRAINING
        draw_study(curves, whole, shown[0].data if shown else {}, study.endpoint.measure)
        draw_mechanism(training, whole)
        pictures = tuple(each for each in (curves, training) if each.is_file())
        lines += [
            f"![success]({CURVES})",
            *(section.markdown() for section in found),
            *[f"![training]({TRAINING})"] * (training in pictures),
        ]
        lines += [
            "## Results that depend on the machine",
            *(section.markdown() for section in timed),
        ]
    page = "\n\n".join(lines) + "\n"
    figures = {
        "study": study.model_dump(mode="json"),
        "registration": registration
        and registration.model_dump(mode="json", exclude={"study", "recipes"}),
        "findings": _data(found),
        "timings": _data(timed),
    }
    (folder / "report.json").write_text(
        json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
    (folder / "report.md").write_text(page, encoding="utf-8")
    return StudyPage(f"{study.name}: {study.question}", page, pictures)


def _setting(study: Study) -> str:
    """Describe recipe, arms and seeds in Markdown."""
    changes = "\n".join(f"- {_fields({name: value})}" for name, value in study.overrides.items())
    recipe = f"Recipe: `{study.recipe}`" + (
        f", with these changes in all arms:\n\n{changes}" if changes else "."
    )
    arms = "\n".join(
        f"- **{arm}**: {_fields(fields) or 'the recipe as it is'}"
        for arm, fields in study.arms.items()
    )
    seeds = f"Seeds of the starter policy, the task order, the sampling and the evaluation: {', '.join(map(str, study.seeds))}."
    if study.tuning_seeds:
        tuning = (
            f"Seeds of tuning, none of which is above: {', '.join(map(str, study.tuning_seeds))}."
        )
    else:
        tuning = "The study states no seeds of tuning."
    return filled(f"{recipe}\n\n{seeds} {tuning}\n\nArms:\n\n{arms}")


def _registered(registration: Registration | None) -> str:
    """Describe the registration in Markdown, with the earlier looks at the study's tasks."""
    if registration is None or registration.registered is None:
        return "The study was not registered before its first run."
    rows = [
        [each.name, each.use, each.world, each.version, str(each.n_tasks), f"`{each.digest}`"]
        for each in registration.lists
    ]
    header = ["task list", "use", "world", "version", "tasks", "digest"]
    lines = [
        f"Registered before the first run, on {registration.registered} UTC: recipe, seeds, "
        "endpoint, comparisons and these task lists.",
        markdown(header, rows),
    ]
    if registration.looks:
        looks = "\n".join(
            f"- {look.n_tasks} tasks of {look.list_name}, by the study {look.study}"
            + (f" in version {look.version}, maybe other tasks" if look.version else "")
            for look in registration.looks
        )
        lines.append(f"Held-out tasks were looked at before:\n\n{looks}")
    if registration.look_again:
        lines.append(f"The stated reason to look again: {registration.look_again}")
    return "\n\n".join(filled(line) if not line.startswith("|") else line for line in lines)


def _progress(study: Study, runs: Runs) -> str:
    made, wanted = sum(map(len, runs.values())), len(study.arms) * len(study.seeds)
    if made == wanted:
        return f"All {wanted} runs are finished."
    return f"{made} of {wanted} runs are finished. The tables contain only these."


def _starts(runs: Runs) -> list[str]:
    """State the digests of the weights before training, as far as they were recorded."""
    seeds: dict[str, set[int]] = {}
    for run in (run for of_arm in runs.values() for run in of_arm):
        if run.weights:
            seeds.setdefault(run.weights[:16], set()).add(run.seed)
    digests = [
        f"`{digest}` (seed {', '.join(map(str, sorted(of)))})" for digest, of in seeds.items()
    ]
    return [filled(f"Digest of the weights before training: {', '.join(digests)}.")] * bool(digests)


def _fields(fields: dict[str, Any]) -> str:
    return ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in fields.items())


def _data(sections: list[Section]) -> dict[str, Any]:
    return {section.title: section.data for section in sections}
