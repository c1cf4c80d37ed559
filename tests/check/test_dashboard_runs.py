"""Tests of the viewer's run pages and figures against the runs' files, without a browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from configs.recipe import load_recipe
from dashboards.by_turn import success_by_horizon, success_by_turn
from dashboards.divergence import attempts_of_task, divergence_of
from dashboards.figures import learning_curve
from dashboards.index import Index
from dashboards.links import Links
from dashboards.overlay import final_evaluation
from dashboards.run_folders import SILENT_SECONDS, RunFolder, run_folders
from dashboards.step_timeline import covered, step_timeline
from dashboards.trajectory import Address, group_of, load_trajectory
from dashboards.web import application
from tasks.provision.services import Addresses
from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories
from tasks.tracking.owner import RunBusyError
from tasks.tracking.run_folder import COLLAPSED, FINISHED
from tasks.tracking.run_folder import RunFolder as StoredRun
from tasks.tracking.timeline import TIMELINE, append_spans, read_spans
from tasks.training.step_metrics import rollout_metrics
from tests.support.recorded_runs import numbers_of, played, recorded_run
from tests.support.viewer_login import basic

SERVICES = Addresses(
    "http://127.0.0.1:4200",
    "http://127.0.0.1:4200/api",
    "http://127.0.0.1:5000",
    "http://127.0.0.1:5050",
)
LOGIN = "agentgym:secret"
FLOW_RUN = "0b8f1cde-33aa-4c0e-9d4c-0f3f4a4f6a11"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        made = recorded_run(folder, seed=seed)
        (made.path / "prefect.json").write_text(json.dumps({"flow_run": FLOW_RUN, "page": None}))
        (made.path / "records").mkdir()
        sent = {"key": "k", "offset": 1, "runs": {"run": "4f11"}, "experiment_id": "7"}
        (made.path / "records" / "sent.json").write_text(json.dumps(sent))
    return folder


@pytest.fixture(scope="module")
def pages(runs: Path) -> Iterator[TestClient]:
    app = application(runs, Links(None, lambda: SERVICES), ["testserver"], LOGIN)
    app.state.index.refresh()
    with TestClient(app, headers=basic(LOGIN)) as client:
        yield client


@pytest.fixture(scope="module")
def index(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Index:
    made = Index(runs, store=tmp_path_factory.mktemp("index") / "index.duckdb")
    made.refresh()
    return made


@pytest.fixture(scope="module")
def first(runs: Path) -> RunFolder:
    return run_folders(runs)[0]


def test_tokens_have_the_training_data(index: Index, first: RunFolder) -> None:
    members = group_of(index, Address(first.name, "rollouts", "step-000002", 1, 0))
    mean = sum(member.row["reward"] for member in members) / len(members)
    for member in members:
        assert member.has_train_samples
        assert member.advantage == pytest.approx(member.row["reward"] - mean, abs=1e-6)
        tokens = [token for turn in member.turns for token in turn.tokens]
        assert [token.gap for token in tokens] == pytest.approx([0.01] * len(tokens), abs=1e-6)
        assert [token.trained and token.trained.entropy for token in tokens] == pytest.approx(
            [0.5] * len(tokens)
        )
        assert all(
            "0.500" in token.description and "+0.01" in token.description for token in tokens
        )
    held_out = load_trajectory(index, Address(first.name, "evaluations", "phase-3", 0, 0))
    assert held_out is not None
    assert held_out.advantage is None
    assert not held_out.has_train_samples


def test_damaged_training_data_leaves_the_trajectory_readable(tmp_path: Path) -> None:
    made = recorded_run(tmp_path, skills=(0.5,), tasks=3)
    (made.path / "train_samples" / "step-000001.parquet").write_bytes(b"PAR1 cut short")
    index = Index(tmp_path)
    assert index.refresh().problems == {}
    found = load_trajectory(index, Address(made.path.name, "rollouts", "step-000001", 0, 0))
    assert found is not None
    assert found.turns
    assert found.advantage is None
    index.close()


def test_success_by_turn_equals_a_count_of_the_episodes(
    index: Index, runs: Path, first: RunFolder
) -> None:
    episodes = read_trajectories(runs / first.name / "evaluations" / "phase-3.parquet")
    curve = next(
        trace for trace in success_by_turn(index, first)["data"] if trace.get("name") == "phase-3"
    )
    assert curve["x"] == list(range(1, 9))
    for turns, share in zip(curve["x"], curve["y"], strict=True):
        assert share == pytest.approx(
            sum(e.succeeded and len(e.turns) <= turns for e in episodes) / len(episodes)
        )


def test_success_by_horizon_equals_a_count_of_the_training_episodes(
    index: Index, runs: Path, first: RunFolder
) -> None:
    episodes = [
        e
        for path in (runs / first.name / "rollouts").glob("*.parquet")
        for e in read_trajectories(path)
    ]
    (found,) = success_by_horizon(index, first)
    assert (found.horizon, found.first, found.last, found.episodes) == (8, 1, 3, len(episodes))
    assert found.success.low <= found.success.value <= found.success.high
    assert found.cut.value == pytest.approx(
        sum(e.outcome == "truncated" for e in episodes) / len(episodes), abs=1e-9
    )


def test_the_timeline_of_a_step_has_the_recorded_times(index: Index, first: RunFolder) -> None:
    clock = step_timeline(index, first, 2)
    assert clock is not None
    assert clock.window[1] - clock.window[0] == pytest.approx(4.5)
    assert clock.busy_shares()["trainer"] == pytest.approx(2.5 / 4.5)
    assert clock.max_staleness() == 0
    writing = [(turn.began, turn.written) for episode in clock.episodes for turn in episode.turns]
    assert clock.busy_shares()["engine"] == pytest.approx(covered(writing) / 4.5)
    assert covered([(0, 2), (1, 3), (5, 6)]) == 4


def test_turns_of_older_weights_count_as_stale(tmp_path: Path) -> None:
    made = recorded_run(tmp_path, skills=(0.5, 0.6), tasks=3)
    file = made.path / "rollouts" / "step-000002.parquet"
    batch = read_trajectories(file)
    batch[0].turns[0].policy_version = 0
    write_trajectories(file, batch)
    index = Index(tmp_path)
    index.refresh()
    clock = step_timeline(index, run_folders(tmp_path)[0], 2)
    assert clock is not None
    assert clock.max_staleness() == 1
    index.close()


def test_last_span_of_a_part_counts_and_incomplete_lines_are_skipped(tmp_path: Path) -> None:
    append_spans(tmp_path / TIMELINE, 1, {"update": (1.0, 2.0)})
    with (tmp_path / TIMELINE).open("a") as file:
        file.write('{"step": 1, "part": "sy')
    append_spans(tmp_path / TIMELINE, 1, {"update": (5.0, 6.0), "sync": (6.0, 7.0)})
    assert [tuple(span) for span in read_spans(tmp_path / TIMELINE)] == [
        (1, "update", 5.0, 6.0),
        (1, "sync", 6.0, 7.0),
    ]


def test_failure_shows_the_first_turn_that_diverges_from_all_successes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    right, wrong = (
        played("textcraft", 26, skill=1.0, horizon=20),
        played("textcraft", 26, skill=1.0, horizon=20),
    )
    assert right.succeeded
    wrong.turns[1].action, wrong.outcome = "look around", Outcome.TRUNCATED
    write_trajectories(runs / "collected" / "some" / "part-000000.parquet", [right])
    write_trajectories(runs / "collected" / "other" / "part-000000.parquet", [wrong])
    index = Index(runs)
    index.refresh()
    found = load_trajectory(index, Address("collected/other", "collected", "part-000000", 0, 0))
    assert found is not None
    found_divergence = divergence_of(index, found)
    assert found_divergence is not None
    assert (found_divergence.turn, found_divergence.successes, found_divergence.nearest.run) == (
        1,
        1,
        "collected/some",
    )
    index.close()


def test_several_runs_are_compared_in_one_figure(pages: TestClient, runs: Path) -> None:
    names = [run.name for run in run_folders(runs)]
    query = "&".join(f"run={name}" for name in names)
    figure = pages.get(f"/compare/figure.json?{query}").json()
    assert [trace["name"] for trace in figure["data"] if trace.get("error_y")] == [
        run.title for run in run_folders(runs)
    ]
    page = pages.get(f"/compare?{query}").text
    assert 'id="compared" data-runs="3"' in page
    assert page.count(" data-reference>") == 1
    assert page.count("<td data-gap>") == 2
    assert pages.get(f"/compare?run=unknown&run={names[0]}").status_code == 200


def test_only_finished_runs_that_were_measured_alike_are_compared_by_task(tmp_path: Path) -> None:
    first, alike, unfinished, other = (
        recorded_run(tmp_path, seed=seed, skills=(0.5,), tasks=3).path for seed in range(4)
    )
    (unfinished / "done" / FINISHED).unlink()
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["evaluation"]["horizon"] = 5
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    app = application(tmp_path, Links(None, lambda: SERVICES), ["testserver"], LOGIN)
    app.state.index.refresh()
    with TestClient(app, headers=basic(LOGIN)) as client:
        for compared, gaps in (
            ((first, alike), 1),
            ((first, alike, unfinished), 1),
            ((first, other), 0),
        ):
            query = "&".join(f"run={path.name}" for path in compared)
            assert client.get(f"/compare?{query}").text.count("<td data-gap>") == gaps


def test_a_runs_page_shows_its_health_and_links_to_prefect_and_mlflow(
    pages: TestClient, first: RunFolder
) -> None:
    page = pages.get(f"/runs/{first.name}").text
    assert 'id="health" data-level="0" data-step="3" data-signs="0"' in page
    assert f"http://127.0.0.1:4200/runs/flow-run/{FLOW_RUN}" in page
    assert "http://127.0.0.1:5000/#/experiments/7/runs/4f11?" in page


def test_a_runs_page_shows_a_collapse(tmp_path: Path) -> None:
    made = recorded_run(tmp_path, skills=(0.5,), tasks=3)
    for step in range(2, 21):
        falling = 0.9 if step < 10 else 0.05
        made.add_metrics(
            step, {"rollout/reward": falling, "rollout/entropy": 1.0 if step < 10 else 0.01}
        )
    app = application(tmp_path, Links(None, lambda: None), ["testserver"], LOGIN)
    with TestClient(app, headers=basic(LOGIN)) as client:
        page = client.get(f"/runs/{made.path.name}").text
    assert 'id="health" data-level="2" data-step="20" data-signs="2"' in page


def test_every_page_and_figure_of_a_run_is_served(pages: TestClient, first: RunFolder) -> None:
    for address in ("", "by-turn", "lanes", "signs", "learning-curve", "lanes/2"):
        path = f"/figures/{first.name}/{address}.json" if address else f"/runs/{first.name}"
        assert pages.get(path).status_code == 200, path
    step = pages.get(f"/steps/{first.name}/rollouts/step-000002").text
    assert 'id="timeline" data-staleness="0"' in step


def test_evaluation_pages_are_linked_in_the_order_of_training(
    pages: TestClient, first: RunFolder
) -> None:
    page = pages.get(f"/steps/{first.name}/evaluations/phase-1").text
    assert f'rel="prev" data-key="p" href="/steps/{first.name}/evaluations/start"' in page
    assert f'rel="next" data-key="n" href="/steps/{first.name}/evaluations/phase-2"' in page


def test_a_study_has_its_report_and_pictures_and_is_listed(pages: TestClient, runs: Path) -> None:
    folder = runs / "studies" / "methods-1a2b"
    folder.mkdir(parents=True)
    (folder / "report.md").write_text("# methods <script>")
    (folder / "success.png").write_bytes(b"\x89PNG")
    (folder / "other.png").write_bytes(b"\x89PNG")
    assert 'href="/studies/methods-1a2b"' in pages.get("/").text
    page = pages.get("/studies/methods-1a2b").text
    assert "# methods &lt;script&gt;" in page
    assert page.count("<img") == 1
    assert pages.get("/studies/methods-1a2b/success.png").content == b"\x89PNG"
    for missing in ("methods-1a2b/other.png", "methods-1a2b/training.png", "unknown"):
        assert pages.get(f"/studies/{missing}").status_code == 404


def test_a_task_over_training_shows_a_success_of_each_evaluation_or_the_requested_sample(
    index: Index, first: RunFolder
) -> None:
    task = numbers_of(1)[0]
    requested, *others = sorted(
        attempts_of_task(index, "textcraft", task, [first.name], "start/1"),
        key=lambda each: not each.requested,
    )
    assert requested.requested
    assert (requested.trajectory.address.name, requested.trajectory.address.member) == ("start", 1)
    assert others
    for each in others:
        assert not each.requested
        assert (each.trajectory.row["outcome"] == "success") == (each.succeeded > 0)


def test_a_run_has_its_recorded_title_status_and_duration(tmp_path: Path) -> None:
    written = StoredRun(tmp_path, load_recipe("textcraft"))
    with written.claimed():
        written.begin("grpo, stepwise, textcraft, seed 0")
        written.begin("grpo, stepwise, textcraft, seed 0, again")
        [run] = run_folders(tmp_path)
        assert run.status(run.changed) == "running"
    assert run.title == "grpo, stepwise, textcraft, seed 0, again"
    assert run.began is not None
    assert run.duration is not None
    assert run.status(run.changed) == "stopped"
    written.mark_done(FINISHED)
    assert run.status(run.changed) == "finished"
    written.mark_done(COLLAPSED)
    assert run.status(run.changed) == "collapsed"


def test_run_is_live_while_a_process_owns_it_even_during_long_steps(
    tmp_path: Path,
) -> None:
    written = StoredRun(tmp_path, load_recipe("textcraft"))
    with written.claimed():
        written.begin("long steps")
        [run] = run_folders(tmp_path)
        assert run.is_live(run.changed + 86_400)
        with pytest.raises(RunBusyError), written.claimed():
            pass
    assert not run.is_live(run.changed)
    with written.claimed():
        assert run.is_live(run.changed)


@pytest.mark.parametrize("owner", ["17 boot-of-another-machine", "17", None])
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "timeline.jsonl", "progress/0.json", "rollouts/1.parquet"]
)
def test_run_on_another_machine_is_live_while_its_files_are_recent(
    tmp_path: Path, owner: str | None, name: str
) -> None:
    written = StoredRun(tmp_path, load_recipe("textcraft"))
    with written.claimed():
        written.begin("elsewhere")
    lock = written.path / "owner.lock"
    lock.unlink() if owner is None else lock.write_text(owner)
    os.utime(written.path / "recipe.yaml", (0, 0))
    (written.path / name).parent.mkdir(exist_ok=True)
    (written.path / name).write_text("")
    [run] = run_folders(tmp_path)
    assert run.is_live(time.time() + 1200)
    assert not run.is_live(time.time() + 2 * SILENT_SECONDS)


def test_the_failures_of_an_evaluation_are_its_episodes_without_success(tmp_path: Path) -> None:
    made = recorded_run(tmp_path, skills=(0.5,), tasks=3)
    file = made.path / "evaluations" / "phase-1.parquet"
    batch = read_trajectories(file)
    for each in batch:
        each.outcome = Outcome.FINISHED
        for turn in each.turns:
            turn.reward = 0.0
    # A success can have a reward below 1, as in AgentGym's BabyAI.
    batch[0].outcome, batch[0].turns[-1].reward = Outcome.SUCCESS, 0.5
    batch[1].outcome, batch[1].turns[-1].reward = Outcome.FINISHED, 1.0
    batch[2].outcome = Outcome.FAILED
    write_trajectories(file, batch)
    app = application(tmp_path, Links(None, lambda: None), ["testserver"], LOGIN)
    app.state.index.refresh()
    with TestClient(app, headers=basic(LOGIN)) as client:
        page = client.get(f"/runs/{made.path.name}").text
        links = re.findall(r'href="([^"]*)" data-do="failures"', page)
        listed = client.get(html.unescape(links[-1])).text
    assert f'data-count="{len(batch) - 2}"' in listed


def test_zero_variance_groups_equal_those_of_training_without_failed_members(
    tmp_path: Path,
) -> None:
    made = StoredRun(tmp_path, load_recipe("textcraft"))
    with made.claimed():
        made.begin("groups")
    rewards: list[list[float | None]] = [
        [0.7] * 6,
        [0.1 + 0.2, 0.3, 0.3],
        [0.7, 0.7, None],
        [0.7, 0.3, None],
        [None, None],
    ]
    batch = [
        Trajectory(
            "textcraft",
            group,
            group,
            member,
            0,
            8,
            0,
            "test",
            turns=[Turn([1], [-0.5], "wait", reward=reward or 0.0)] * (1 if reward else 5),
            outcome=Outcome.FAILED if reward is None else Outcome.FINISHED,
        )
        for group, members in enumerate(rewards)
        for member, reward in enumerate(members)
    ]
    write_trajectories(made.path / "rollouts" / "step-000001.parquet", batch)
    zero_variance_groups = rollout_metrics(batch, 8, 1.0, 0, False)["rollout/zero_variance_groups"]
    # The group without a finished episode is not counted.
    assert zero_variance_groups == pytest.approx(3 / 4)
    app = application(tmp_path, Links(None, lambda: None), ["testserver"], LOGIN)
    app.state.index.refresh()
    with TestClient(app, headers=basic(LOGIN)) as client:
        run = client.get(f"/runs/{made.path.name}").text
        step = client.get(f"/steps/{made.path.name}/rollouts/step-000001").text
        groups = [
            client.get(f"/groups/{made.path.name}/rollouts/step-000001/{group}").text
            for group in range(len(rewards))
        ]
    assert 'data-alike="3"' in run
    assert re.findall(r"<td>([\d.—]+)</td><td>([\d.—]+)</td><td>(<span class=\"warn\")?", step) == [
        ("0.70", "1.0", '<span class="warn"'),
        ("0.30", "1.0", '<span class="warn"'),
        ("0.70", "1.0", '<span class="warn"'),
        ("0.50", "1.0", ""),
        ("—", "—", ""),
    ]
    assert ['<p class="warn">' in page for page in groups] == [True, True, True, False, False]


@pytest.mark.parametrize("step", [0, 1])
def test_the_latest_success_after_a_roll_back_is_that_of_the_restored_policy(
    tmp_path: Path, step: int
) -> None:
    made = recorded_run(tmp_path, skills=(0.5, 0.6), tasks=3)
    start, rolled_back = made.evaluation("start"), made.evaluation("rolled-back")
    rolled_back.write_text(json.dumps(json.loads(start.read_text()) | {"step": step}))
    shutil.copy(start.with_suffix(".parquet"), rolled_back.with_suffix(".parquet"))
    index = Index(tmp_path)
    index.refresh()
    [run] = run_folders(tmp_path)
    assert list(run.evaluations()) == ["start", "phase-1", "phase-2", "rolled-back"]
    assert final_evaluation(run) == run.evaluations()["rolled-back"]
    *_, low, high, last = success_by_turn(index, run)["data"]
    assert (last["name"], high["fill"]) == ("rolled-back", "tonexty")
    assert low["x"] == last["x"]
    [held_out] = [trace for trace in learning_curve(run)["data"] if trace.get("error_y")]
    assert held_out["x"] == sorted([0, step, 1, 2])
    index.close()


def test_a_run_without_an_evaluation_after_training_has_no_latest_success(tmp_path: Path) -> None:
    made = recorded_run(tmp_path, skills=(0.5,), tasks=3)
    made.evaluation("phase-1").unlink()
    [run] = run_folders(tmp_path)
    assert final_evaluation(run) is None
