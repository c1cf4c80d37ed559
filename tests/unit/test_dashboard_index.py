"""The viewer's index: what it lists is what the files hold, whatever happened to the files or to the index."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dashboards.filters import FilterError, Filters, listed
from dashboards.index import Index
from tasks.rollout.trajectory_parquet import read_trajectories, write_trajectories
from tests.support.recorded_runs import recorded_run


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


def every(runs: Path) -> list:  # type: ignore[type-arg]
    return [each for path in runs.rglob("*.parquet") if path.parent.name != "train_samples" for each in read_trajectories(path)]


def test_the_index_holds_every_trajectory_of_every_file(runs: Path, index: Index) -> None:
    found = listed(index, Filters())
    stored = every(runs)
    assert found.count == len(stored) == 4 * 12 + 3 * 12
    assert found.low == found.high == pytest.approx(sum(each.succeeded for each in stored) / len(stored))


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ({"outcome": "success"}, lambda t: t.outcome == "success"),
        ({"reason": "horizon"}, lambda t: t.reason == "horizon"),
        ({"turns_from": "3", "turns_to": "5"}, lambda t: 3 <= len(t.turns) <= 5),
        ({"reward_to": "0.5"}, lambda t: t.reward <= 0.5),
        (
            {"text": "CRAFTED"},
            lambda t: any("crafted" in turn.observation.lower() for turn in t.turns) or "crafted" in t.first_observation.lower(),
        ),
        (
            {"text": "got 1", "outcome": "truncated"},
            lambda t: t.outcome == "truncated" and any("got 1" in x.observation.lower() for x in t.turns),
        ),
    ],
)
def test_a_filter_lets_through_what_a_look_at_each_trajectory_would(runs: Path, index: Index, words: dict[str, str], passes) -> None:  # type: ignore[no-untyped-def]
    wanted = sum(bool(passes(each)) for each in every(runs))
    assert wanted
    assert listed(index, Filters.of(words)).count == wanted


def test_texts_that_look_like_sql_or_patterns_are_only_texts(index: Index) -> None:
    for text in ("'; drop table trajectories; --", "100%", "_", "\\", '"', "\x00"):
        assert listed(index, Filters(text=text)).count in range(85)
    assert listed(index, Filters()).count == 84


def test_a_filter_that_is_no_number_is_named() -> None:
    with pytest.raises(FilterError, match=r"turns_from.*'many'"):
        Filters.of({"turns_from": "many"})
    with pytest.raises(FilterError, match="order must be one of"):
        Filters.of({"order": "chaos"})


def test_an_address_says_the_filters_and_says_them_back() -> None:
    filters = Filters.of({"text": "oak & elm", "turns_to": "4", "page": "3"})
    assert filters.words() == "turns_to=4&text=oak+%26+elm"
    assert "page=4" in filters.words(page=4)


def test_changed_new_and_deleted_files_are_followed(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    index = Index(tmp_path / "runs")
    assert index.refresh().read == 3
    assert index.refresh().read == 0
    file = folder.path / "rollouts" / "step-000001.parquet"
    batch = read_trajectories(file)
    write_trajectories(file, batch[:5])
    assert index.refresh().read == 1
    assert listed(index, Filters(kind="rollouts")).count == 5
    file.unlink()
    assert index.refresh().gone == 1
    assert listed(index, Filters(kind="rollouts")).count == 0


def test_a_torn_file_and_one_of_another_kind_are_named_and_the_rest_is_listed(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    whole = (folder.path / "rollouts" / "step-000001.parquet").read_bytes()
    (folder.path / "rollouts" / "step-000002.parquet").write_bytes(whole[: len(whole) // 2])
    table = pq.read_table(folder.path / "rollouts" / "step-000001.parquet").drop_columns(["turns"])
    pq.write_table(table, folder.path / "rollouts" / "step-000003.parquet")
    index = Index(tmp_path / "runs")
    problems = index.refresh().problems
    assert {Path(path).name for path in problems} == {"step-000002.parquet", "step-000003.parquet"}
    assert "column turns is missing" in problems[str(folder.path / "rollouts" / "step-000003.parquet")]
    assert listed(index, Filters(kind="rollouts")).count == 12


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    first = Index(tmp_path / "runs")
    first.refresh()
    first.close()
    store = tmp_path / "runs" / ".dashboards" / "index.duckdb"
    store.write_bytes(b"not a database" * 1000)
    again = Index(tmp_path / "runs")
    assert again.refresh().read == 3
    again.close()


def test_two_viewers_of_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    import subprocess
    import sys

    recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    first = Index(tmp_path / "runs")
    first.refresh()
    code = (
        "import sys; from pathlib import Path; from dashboards.index import Index; i = Index(Path(sys.argv[1])); i.refresh(); "
        "print(i.query('select count(*) as n from trajectories')[0]['n'])"
    )
    second = subprocess.run([sys.executable, "-c", code, str(tmp_path / "runs")], capture_output=True, text=True, check=True)
    assert int(second.stdout) == listed(first, Filters()).count


def test_a_file_that_goes_while_it_is_read_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded_run(tmp_path / "runs", skills=(0.5,), tasks=3)
    going = folder.path / "rollouts" / "step-000001.parquet"

    def looked_at_and_gone(path: Path) -> str:
        if path == going:
            path.unlink(missing_ok=True)
        return ""

    monkeypatch.setattr("dashboards.index.unreadable", looked_at_and_gone)
    index = Index(tmp_path / "runs")
    assert set(index.refresh().problems) == {str(going)}
    assert listed(index, Filters(kind="evaluations")).count == 12
    assert index.refresh().gone == 1
    index.close()


def test_a_viewer_that_is_killed_while_it_reads_opens_again_with_everything(tmp_path: Path) -> None:
    import signal
    import subprocess
    import sys

    recorded_run(tmp_path / "runs", skills=(0.5, 0.6, 0.7), tasks=3)
    code = (
        "import sys, dashboards.index as i; from pathlib import Path; i.FILES_AT_ONCE = 2; index = i.Index(Path(sys.argv[1]))\n"
        "read = index._read\n"
        "def told(batch):\n    read(batch); print('read', flush=True)\n"
        "index._read = told; index.refresh()"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "runs")], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "read\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    index = Index(tmp_path / "runs")
    index.refresh()
    assert listed(index, Filters()).count == len(every(tmp_path / "runs"))
    index.close()
