"""Tests of the viewer's index: its contents, filters, refreshes and damaged files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dashboards.filters import FilterError, Filters, list_trajectories
from dashboards.index import Index
from environments.registry import WORLDS
from tasks.rollout.trajectory import Outcome
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories
from tests.support.processes import run_python
from tests.support.recorded_runs import numbers_of, played, recorded_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    recorded_run(folder)
    return folder


@pytest.fixture
def index(runs: Path, tmp_path: Path) -> Index:
    made = Index(runs, store=tmp_path / "index.duckdb")
    made.refresh()
    return made


def all_trajectories(runs: Path) -> list:  # type: ignore[type-arg]
    return [
        each
        for path in runs.rglob("*.parquet")
        if path.parent.name != "train_samples"
        for each in read_trajectories(path)
    ]


def test_index_contains_every_trajectory_of_every_file(runs: Path, index: Index) -> None:
    found = list_trajectories(index, Filters())
    stored = all_trajectories(runs)
    assert found.count == len(stored) == 4 * 12 + 3 * 12
    assert (
        found.low
        == found.high
        == pytest.approx(sum(each.succeeded for each in stored) / len(stored))
    )


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ({"outcome": "success"}, lambda t: t.outcome == "success"),
        ({"reason": "horizon"}, lambda t: t.reason == "horizon"),
        ({"horizon": "8", "reward_to": "0.5"}, lambda t: t.horizon == 8 and t.reward <= 0.5),
        ({"turns_from": "3", "turns_to": "5"}, lambda t: 3 <= len(t.turns) <= 5),
        ({"success": "yes"}, lambda t: t.succeeded),
        ({"success": "no"}, lambda t: not t.succeeded),
        ({"reward_to": "0.5"}, lambda t: t.reward <= 0.5),
        (
            {"text": "CRAFTED"},
            lambda t: (
                any("crafted" in turn.observation.lower() for turn in t.turns)
                or "crafted" in t.first_observation.lower()
            ),
        ),
        (
            {"text": "got 1", "outcome": "truncated"},
            lambda t: (
                t.outcome == "truncated" and any("got 1" in x.observation.lower() for x in t.turns)
            ),
        ),
    ],
)
def test_filter_returns_exactly_the_matching_trajectories(
    runs: Path, index: Index, words: dict[str, str], passes
) -> None:  # type: ignore[no-untyped-def]
    wanted = sum(bool(passes(each)) for each in all_trajectories(runs))
    assert wanted
    assert list_trajectories(index, Filters.parse(words)).count == wanted


def test_sql_and_patterns_in_a_search_text_are_plain_text(index: Index) -> None:
    for text in ("'; drop table trajectories; --", "100%", "_", "\\", '"', "\x00"):
        assert list_trajectories(index, Filters(text=text)).count in range(85)
    assert list_trajectories(index, Filters()).count == 84


def test_an_invalid_filter_is_rejected_by_name() -> None:
    for field, value in (("turns_from", "many"), ("order", "chaos"), ("success", "maybe")):
        with pytest.raises(FilterError) as rejected:
            Filters.parse({field: value})
        assert rejected.value.field == field
        assert repr(value) in str(rejected.value)


def test_filters_are_written_as_a_query_string() -> None:
    filters = Filters.parse({"text": "oak & elm", "turns_to": "4", "page": "3"})
    assert filters.query_string() == "turns_to=4&text=oak+%26+elm"
    assert "page=4" in filters.query_string(page=4)


def test_a_refresh_reads_new_and_changed_files_and_drops_deleted_ones(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    index = Index(tmp_path / "runs")
    assert index.refresh().read == 3
    assert index.refresh().read == 0
    file = folder.path / "rollouts" / "step-000001.parquet"
    batch = read_trajectories(file)
    write_trajectories(file, batch[:5])
    assert index.refresh().read == 1
    assert list_trajectories(index, Filters(kind="rollouts")).count == 5
    file.unlink()
    assert index.refresh().gone == 1
    assert list_trajectories(index, Filters(kind="rollouts")).count == 0


def test_an_incomplete_collection_has_one_success_rate_with_bounds(tmp_path: Path) -> None:
    task = numbers_of(1)[0]
    good = played("textcraft", task, skill=1.0, horizon=30, group=0, member=0, seed=0)
    assert good.succeeded
    member = replace(good, group=1)
    lost = replace(good, group=1, member=1, outcome=Outcome.FAILED, turns=[])
    folder = tmp_path / "collected" / "x"
    for name, episodes in (
        ("part-000000.parquet", [good]),
        ("failed/part-000000.parquet", [member, lost]),
        ("pending/000000.parquet", [member]),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_trajectories(folder / name, episodes)
    (folder / "settings.json").write_text("{}")
    index = Index(tmp_path)
    index.refresh()
    found = list_trajectories(index, Filters(run="collected/x"))
    assert (found.count, found.low, found.high) == (3, pytest.approx(2 / 3), 1.0)
    assert list_trajectories(index, Filters()).count == 3


def test_unreadable_files_are_listed_as_problems(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    content = (folder.path / "rollouts" / "step-000001.parquet").read_bytes()
    (folder.path / "rollouts" / "step-000002.parquet").write_bytes(content[: len(content) // 2])
    table = pq.read_table(folder.path / "rollouts" / "step-000001.parquet").drop_columns(["turns"])
    pq.write_table(table, folder.path / "rollouts" / "step-000003.parquet")
    index = Index(tmp_path / "runs")
    problems = index.refresh().problems
    assert {Path(path).name for path in problems} == {"step-000002.parquet", "step-000003.parquet"}
    assert "turns" in problems[str(folder.path / "rollouts" / "step-000003.parquet")]
    assert list_trajectories(index, Filters(kind="rollouts")).count == 12


def test_a_damaged_index_is_rebuilt(tmp_path: Path) -> None:
    recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    first = Index(tmp_path / "runs")
    first.refresh()
    first.close()
    store = tmp_path / "runs" / ".dashboards" / "index.duckdb"
    store.write_bytes(b"not a database" * 1000)
    again = Index(tmp_path / "runs")
    assert again.refresh().read == 3
    again.close()


def test_two_viewers_can_read_the_same_folder(tmp_path: Path) -> None:
    recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    first = Index(tmp_path / "runs")
    first.refresh()
    code = (
        "import sys; from pathlib import Path; from dashboards.index import Index; i = "
        "Index(Path(sys.argv[1])); i.refresh(); "
        "print(i.query('select count(*) as n from trajectories')[0]['n'])"
    )
    assert (
        int(run_python(code, str(tmp_path / "runs"))) == list_trajectories(first, Filters()).count
    )


def test_a_file_that_disappears_during_a_refresh_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    deleted = folder.path / "rollouts" / "step-000001.parquet"

    def delete_and_accept(path: Path) -> str:
        if path == deleted:
            path.unlink(missing_ok=True)
        return ""

    monkeypatch.setattr("dashboards.index.unreadable", delete_and_accept)
    index = Index(tmp_path / "runs")
    assert set(index.refresh().problems) == {str(deleted)}
    assert list_trajectories(index, Filters(kind="evaluations")).count == 12
    assert index.refresh().gone == 1
    index.close()


def test_a_viewer_killed_during_a_refresh_restarts_with_all_files(tmp_path: Path) -> None:
    import signal
    import subprocess
    import sys

    recorded_run(tmp_path / "runs", skills=(0.5, 0.6, 0.7), tasks=3)
    code = (
        "import sys, dashboards.index as i; from pathlib import Path; i.FILES_AT_ONCE = 2; index = "
        "i.Index(Path(sys.argv[1]))\n"
        "read = index._read\n"
        "def announce(batch):\n    read(batch); print('read', flush=True)\n"
        "index._read = announce; index.refresh()"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "runs")], stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None
    assert killed.stdout.readline() == "read\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    index = Index(tmp_path / "runs")
    index.refresh()
    assert list_trajectories(index, Filters()).count == len(all_trajectories(tmp_path / "runs"))
    index.close()


def tags(index: Index) -> dict[int, str]:
    return {row["task"]: row["tag"] for row in index.query("select task, tag from tags")}


def test_unknown_task_does_not_hide_the_tags_of_other_tasks(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    file = folder.path / "rollouts" / "step-000001.parquet"
    batch = read_trajectories(file)
    batch[0].task = 10**9
    write_trajectories(file, batch)
    index = Index(tmp_path / "runs")
    index.refresh()
    found = tags(index)
    assert found.pop(10**9) == ""
    assert found
    assert all(tag.startswith("depth ") for tag in found.values())
    index.close()


def test_tags_of_tasks_are_read_once_their_world_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    with monkeypatch.context() as without:
        without.setitem(WORLDS, "textcraft", "not_installed:TextCraft")
        index = Index(tmp_path / "runs")
        index.refresh()
        assert tags(index) == {}
        index.close()
    again = Index(tmp_path / "runs")
    assert again.refresh().read == 0
    assert tags(again)
    assert all(tag.startswith("depth ") for tag in tags(again).values())
    again.close()
