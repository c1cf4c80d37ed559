"""Tests of the records in a real MLflow store: metrics, traces, checkpoints, datasets, pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from tasks.rollout.trajectory import Outcome, Trajectory
from tasks.rollout.trajectory_parquet import read_trajectories
from tasks.tracking import mlflow_writes
from tasks.tracking.datasets import TaskListEntry
from tasks.tracking.system_metrics import SystemMetrics
from tasks.tracking.tracker import LEFT_OUT, Tracker
from tests.support.tracked import checkpoint, episode, history, stored


def test_phase_metrics_are_also_on_the_run_and_undefined_ones_are_counted(
    tracker: Tracker, client: MlflowClient
) -> None:
    run = tracker.start_run("run", {})
    for number, steps in enumerate([(1, 2), (3, 4)], start=1):
        phase = tracker.start_phase(f"phase-{number}", f"phase {number}")
        for step in steps:
            tracker.log_metrics(
                phase,
                {"rollout/success": step / 10, "pass@8": 0.5, "kl": float("nan"), "gap": None},
                step,
            )
    first, last = stored(tracker, run), stored(tracker, phase)
    assert history(client, first, "rollout/success") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert history(client, last, "rollout/success") == [(3, 0.3), (4, 0.4)]
    assert history(client, first, "pass_at_8")[-1] == (4, 0.5)
    assert history(client, first, LEFT_OUT)[-1] == (4, 2.0)
    assert history(client, first, "kl") == []


@pytest.mark.parametrize(
    "damage", [lambda file: file.write_bytes(file.read_bytes()[:100]), lambda file: file.unlink()]
)
def test_damaged_traces_do_not_block_other_records(
    damage: Callable[[Path], object],
    tracker: Tracker,
    client: MlflowClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(path: Path) -> list[Trajectory]:
        damage(path)
        return read_trajectories(path)

    monkeypatch.setattr(mlflow_writes, "read_trajectories", lost)
    run = tracker.start_run("run", {})
    tracker.log_trajectories(run, [episode(3)], {"phase": "2"}, 20)
    tracker.log_metrics(run, {"rollout/success": 0.5}, 21)
    assert history(client, stored(tracker, run), "rollout/success") == [(21, 0.5)]


def test_trajectories_are_traces_of_their_run(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("run", {})
    batch = [
        episode(3),
        episode(4, Outcome.TRUNCATED, reason="horizon"),
        episode(5, Outcome.FAILED, reason="RefusedError: gone", turns=[], seconds=0.5),
    ]
    for _ in range(2):  # a phase that is recorded again
        tracker.log_trajectories(run, batch, {"phase": "2"}, 20)
    run = stored(tracker, run)
    mlflow.set_tracking_uri(tracker.tracking_uri)
    found = mlflow.search_traces(locations=[tracker.experiment_id], run_id=run)
    assert sorted(tags["task"] for tags in found["tags"]) == ["3", "4", "5"]
    solved = mlflow.search_traces(
        locations=[tracker.experiment_id],
        run_id=run,
        filter_string="tags.outcome = 'success'",
        return_type="list",
    )
    assert len(solved) == 1
    info, spans = solved[0].info, solved[0].data.spans
    assert {
        "phase": "2",
        "environment": "textcraft",
        "step": "20",
        "horizon": "8",
    }.items() <= info.tags.items()
    assert info.execution_duration == 2000
    assert [(span.name, span.span_type) for span in spans] == [
        ("textcraft 3: success after 2 turns", "AGENT"),
        ("reset", "TOOL"),
        ("turn 1: get 1 oak_log", "CHAT_MODEL"),
        ("answer 1: Got 1 oak_log", "TOOL"),
        ("turn 2: craft 4 oak_planks", "CHAT_MODEL"),
        ("answer 2: Crafted", "TOOL"),
    ]
    assert [(span.end_time_ns - span.start_time_ns) / 1e9 for span in spans[1:]] == [
        0,
        0.5,
        0.25,
        1.0,
        0.125,
    ]
    assert {span.parent_id for span in spans[1:]} == {spans[0].span_id}
    assert spans[0].outputs == {"outcome": "success", "reason": "", "reward": 1.0, "turns": 2}
    assert spans[3].outputs == {"observation": "Got 1 oak_log", "reward": 0.0}
    assert spans[4].inputs == {"messages": [{"role": "user", "content": "Got 1 oak_log"}]}
    assert spans[4].outputs["choices"][0]["message"]["content"] == "craft 4 oak_planks"
    assert info.token_usage == {"input_tokens": 2 + 7, "output_tokens": 4, "total_tokens": 13}
    (cut,) = client.search_traces(
        locations=[tracker.experiment_id], run_id=run, filter_string="tags.outcome = 'truncated'"
    )
    assert cut.info.tags["mlflow.traceName"] == "textcraft 4: truncated after 2 turns, horizon"
    assessed = {each.name: each.feedback.value for each in info.assessments}
    assert assessed == {"success": True, "score": 1.0, "refused_turns": 0.0}
    assert info.trace_metadata["mlflow.trace.session"] == f"{run} textcraft 3"
    assert info.state == "OK"
    assert cut.info.state not in ("OK", "ERROR")
    broken = client.search_traces(
        locations=[tracker.experiment_id], run_id=run, filter_string="tags.outcome = 'failed'"
    )
    assert [(trace.info.state, trace.data.spans[0].status.description) for trace in broken] == [
        ("ERROR", "RefusedError: gone")
    ]
    assert [trace.info.assessments for trace in broken] == [[]]


def test_checkpoint_is_registered_once_without_copying_weights(
    tracker: Tracker, client: MlflowClient, database: Path, tmp_path: Path
) -> None:
    run = tracker.start_run("run", {})
    entries = [checkpoint(tmp_path / f"step-{step}", step) for step in (10, 20)]
    for entry in (entries[0], entries[0], entries[1]):
        tracker.register_checkpoint(run, entry)
    run = stored(tracker, run)
    versions = sorted(
        client.search_model_versions("name = 'quickstart'"), key=lambda each: int(each.version)
    )
    assert [
        (each.tags["step"], each.tags["checkpoint_digest"], each.run_id) for each in versions
    ] == [
        ("10", "digest-10", run),
        ("20", "digest-20", run),
    ]
    assert versions[0].tags["folder"] == str(tmp_path / "step-10")
    assert set(versions[0].tags) == {
        "step",
        "horizon",
        "folder",
        "checkpoint_digest",
        "logged_model",
        "success",
    }
    assert versions[0].tags["success"] == "0.5000"
    assert str(tmp_path / "step-10") in versions[0].description
    assert "50.0%" in versions[0].description
    model = client.get_logged_model(versions[0].tags["logged_model"])
    assert [(metric.key, metric.value, metric.step) for metric in model.metrics] == [
        ("evaluation/success", 0.5, 10)
    ]
    assert history(client, run, "evaluation/success") == [(10, 0.5), (20, 0.5)]
    assert set(client.get_run(run).data.metrics) == {"evaluation/success"}
    kept = [
        path
        for path in database.parent.rglob("*")
        if path.is_file() and "mlflow.db" not in path.name
    ]
    assert kept
    assert sum(path.stat().st_size for path in kept) < 100_000  # the weights are 2 MiB


def test_run_links_phase_checkpoints_once(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    run = tracker.start_run("run", {})
    phase = tracker.start_phase("phase-1", "phase 1", {})
    entry = checkpoint(tmp_path / "step-10", 10, "linked")
    tracker.register_checkpoint(phase, entry)
    tracker.register_checkpoint(
        phase, replace(entry, digest="other")
    )  # saved again after it was damaged
    tracker.point_aliases(run, replace(entry, metrics={}), ["champion"])
    ids = [stored(tracker, each) for each in (run, phase)]
    (version,) = client.search_model_versions("name = 'linked'")
    for each in ids:
        assert [
            (output.model_id, output.step) for output in client.get_run(each).outputs.model_outputs
        ] == [(version.tags["logged_model"], 10)]
    assert "50.0%" in version.description  # pointing an alias without metrics keeps the success


def test_system_metrics_include_the_machine_load(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("run", {})
    with SystemMetrics(sample_seconds=0.01) as system:
        tracker.log_metrics(run, system.take(), 1, of="system")
        tracker.log_metrics(run, {"update/loss": 1.0}, 1)
    metrics = client.get_run(stored(tracker, run)).data.metrics
    assert 0 < metrics["system/system_memory_usage_percentage"] <= 100
    assert "system/cpu_utilization_percentage" in metrics


def test_checkpoint_of_a_recipe_with_a_dot_in_its_name_is_registered(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    run = tracker.start_run("run", {})
    tracker.register_checkpoint(run, checkpoint(tmp_path / "step-10", 10, "textcraft-qwen2.5-7b"))
    stored(tracker, run)
    (version,) = client.search_model_versions("name = 'textcraft-qwen2.5-7b'")
    assert version.tags["step"] == "10"


def test_task_lists_are_logged_once_as_datasets(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("run", {})
    lists = [
        TaskListEntry.of("textcraft", "v2", "wood-train", "training", [1, 2, 3]),
        TaskListEntry.of("textcraft", "v2", "wood-test", "evaluation", [7]),
    ]
    for _ in range(2):
        tracker.log_task_lists(run, lists)
    inputs = client.get_run(stored(tracker, run)).inputs.dataset_inputs
    assert {(each.dataset.name, each.dataset.digest, each.tags[0].value) for each in inputs} == {
        ("textcraft wood-train", lists[0].digest, "training"),
        ("textcraft wood-test", lists[1].digest, "evaluation"),
    }
    assert len(inputs) == 2
    assert (
        TaskListEntry.of("textcraft", "v3", "wood-train", "training", [1, 2, 3]).digest
        != lists[0].digest
    )
    assert (
        TaskListEntry.of("textcraft", "v2", "wood-train", "training", [1, 3, 2]).digest
        != lists[0].digest
    )


def test_run_renamed_by_the_user_keeps_its_name(
    tracker: Tracker, client: MlflowClient, tmp_path: Path
) -> None:
    run = stored(tracker, tracker.start_run("grpo, fixed 4", {}))
    client.update_run(run, name="the good one")
    again = Tracker(tracker.tracking_uri, "study", tmp_path / "run")
    assert stored(again, again.start_run("grpo, fixed 4", {}, {"more": "1"})) == run
    assert client.get_run(run).info.run_name == "the good one"


def test_a_finished_run_that_reopens_can_fail(tracker: Tracker, client: MlflowClient) -> None:
    run = tracker.start_run("evaluation", {}, {"note": "complete"})
    tracker.end_run(run)
    tracker.start_run("evaluation", {}, {"note": "incomplete"})
    tracker.end_run(run, "FAILED")
    assert client.get_run(stored(tracker, run)).info.status == "FINISHED"
    tracker.start_run("evaluation", {}, {"note": "incomplete"}, reopens=True)
    tracker.end_run(run, "FAILED")
    found = client.get_run(stored(tracker, run))
    assert (found.info.status, found.data.tags["note"]) == ("FAILED", "incomplete")


@pytest.mark.parametrize(
    ("problem", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")]
)
def test_a_run_that_raises_is_ended(
    problem: type[BaseException], status: str, tracker: Tracker, client: MlflowClient
) -> None:
    def fails() -> None:
        with tracker:
            tracker.start_run("study", {})
            raise problem

    with pytest.raises(problem):
        fails()
    assert client.get_run(stored(tracker, "run")).info.status == status


def test_pictures_and_tables_are_next_to_the_database_and_are_replaced(
    tracker: Tracker, client: MlflowClient, database: Path, tmp_path: Path
) -> None:
    run = tracker.start_run("run", {})
    picture = tmp_path / "learning_curve.png"
    for content in (b"first", b"second"):
        picture.write_bytes(content)
        tracker.log_picture(run, picture)
        tracker.log_table(run, "| step |\n| --- |\n| 1 |\n", "evaluation.md")
        tracker.flush()
    run = stored(tracker, run)
    assert [each.path for each in client.list_artifacts(run)] == [
        "evaluation.md",
        "learning_curve.png",
    ]
    folder = database.parent / "artifacts" / "study" / run / "artifacts"
    assert (folder / "learning_curve.png").read_bytes() == b"second"
    with pytest.raises(FileNotFoundError, match=r"absent\.png"):
        tracker.log_picture(run, tmp_path / "absent.png")
