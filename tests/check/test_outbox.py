"""Tests of the outbox: partially written records, and sending them despite outages of the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from tasks.provision.process import is_gone, this_process
from tasks.tracking import background
from tasks.tracking import sender as sender_module
from tasks.tracking.mlflow_import import TrackingError
from tasks.tracking.orphans import unsent_outboxes
from tasks.tracking.outbox import OUTBOX, Outbox, Record, Sent, is_unsent
from tasks.tracking.sender import Sender
from tasks.tracking.step_metrics_file import append_step, read_steps, write_steps
from tasks.tracking.store import Store


def table(number: int, text: str = "") -> Record:
    return {"id": f"table {number}", "kind": "table", "run": "run", "name": "x.md", "text": text}


def names(outbox: Outbox) -> list[str]:
    return [record["id"] for record, _ in outbox.unsent(outbox.read_sent())]


def test_record_is_stored_once_and_updates_only_if_changed(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    assert [outbox.add(table(1)), outbox.add(table(1)), Outbox(tmp_path).add(table(1))] == [
        True,
        False,
        False,
    ]
    assert [outbox.add(table(1, text), update=True) for text in ("a", "a", "b", "a")] == [
        True,
        False,
        True,
        True,
    ]


def test_unsent_records_of_runs_evaluations_studies_and_comparisons_are_found(
    tmp_path: Path,
) -> None:
    folders = [
        tmp_path / name / "records"
        for name in (
            "before-after/quickstart-1a2b-step-000036",
            "evaluated/textcraft-oracle-1a2b",
            "quickstart-1a2b",
            "studies/methods-1a2b",
            "studies/methods-1a2b/evaluations/grpo-seed-0",
        )
    ]
    for folder in folders:
        Outbox(folder).add(table(1))
    assert set(unsent_outboxes(tmp_path)) == set(folders)


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_partially_written_record_is_dropped(tmp_path: Path, cut: int) -> None:
    outbox = Outbox(tmp_path)
    for number in (1, 2):
        outbox.add(table(number))
    text = (tmp_path / "outbox.jsonl").read_bytes()
    (tmp_path / "outbox.jsonl").write_bytes(text[:-cut])
    again = Outbox(tmp_path)
    for number in (2, 3):
        again.add(table(number))
    assert names(Outbox(tmp_path)) == ["table 1", "table 2", "table 3"]
    assert Outbox(tmp_path).key == outbox.key


@pytest.mark.parametrize("cut", [1, 9, 20])
def test_partially_written_metrics_line_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        append_step(path, step, {"rollout/success": step / 10})
    path.write_bytes(path.read_bytes()[:-cut])
    append_step(path, 3, {"rollout/success": 0.3})
    found = read_steps(path)
    assert {1, 3} <= set(found)
    assert (found[1], found[3]) == ({"rollout/success": 0.1}, {"rollout/success": 0.3})


@pytest.mark.parametrize(
    "line", [b"[1, 2]", b'{"no step": 1}', b'"text"', b"\xff\xfe", b"{}", b"null"]
)
def test_invalid_metrics_lines_are_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line + b'\n{"step": 2, "a": 1.0}\n')
    assert read_steps(path) == {2: {"a": 1.0}}
    write_steps(path, {2: {"a": 2.0}, 1: {"a": 1.0}})
    assert list(read_steps(path)) == [1, 2]


class UnavailableStore:
    """A store whose first `times` writes fail with `error`."""

    def __init__(self, times: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times, self.error, self.taken = times, error, list[str]()
        self.client = self
        self.uri, self.experiment_id = "test", "0"
        monkeypatch.setattr(sender_module, "write", self.write)
        monkeypatch.setattr(background, "FIRST_PAUSE_S", 0.01)

    def write(self, store: Store, outbox: Outbox, sent: Sent, record: Record) -> None:
        if self.times:
            self.times -= 1
            raise self.error
        self.taken.append(record["id"])

    def get_experiment(self, number: str) -> str:
        return number

    def sender(self, outbox: Outbox) -> Sender:
        return Sender(outbox, lambda: cast(Store, self))


def test_records_are_sent_in_order_despite_outages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, store = (
        Outbox(tmp_path),
        UnavailableStore(3, ConnectionError("connection refused"), monkeypatch),
    )
    sender = store.sender(outbox)
    for number in range(5):
        outbox.add(table(number))
        sender.wake()
    assert sender.wait(seconds=60, patience=60)
    assert store.taken == [f"table {number}" for number in range(5)]
    assert not is_unsent(tmp_path)


def test_wait_during_an_outage_is_bounded_and_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, store = (
        Outbox(tmp_path),
        UnavailableStore(10**9, ConnectionError("connection refused"), monkeypatch),
    )
    sender = store.sender(outbox)
    outbox.add(table(1))
    sender.wake()
    assert not sender.wait(seconds=60, patience=0)
    assert is_unsent(tmp_path)
    later = Outbox(tmp_path)  # as another command does
    store.times = 0
    store.sender(later).send_all()
    assert "table 1" in store.taken
    assert not is_unsent(tmp_path)


def mlflow_refusal() -> Exception:
    """Return MLflow's answer to a request that can never succeed."""
    from mlflow.exceptions import MlflowException  # imported here because it takes two seconds

    return MlflowException("no such thing", error_code=1000)  # INVALID_PARAMETER_VALUE


def test_rejected_record_is_raised_once_and_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = mlflow_refusal()
    outbox, store = Outbox(tmp_path), UnavailableStore(1, refusal, monkeypatch)
    sender = store.sender(outbox)
    outbox.add(table(1))
    outbox.add(table(2))
    sender.wake()
    with pytest.raises(TrackingError, match="table 1"):
        sender.wait(seconds=60, patience=60)
    assert sender.wait(seconds=60, patience=60)
    assert store.taken == ["table 2"]


def test_records_are_kept_while_another_program_has_mlflows_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse every request, as another program on the port of an ended MLflow does."""
    refusal = mlflow_refusal()
    outbox, store = Outbox(tmp_path), UnavailableStore(2, refusal, monkeypatch)

    def unknown(number: str) -> str:
        raise refusal

    monkeypatch.setattr(store, "get_experiment", unknown)
    sender = store.sender(outbox)
    outbox.add(table(1))
    sender.wake()
    assert sender.wait(seconds=60, patience=60)
    assert store.taken == ["table 1"]


def test_owner_is_gone_only_if_certain() -> None:
    host, boot, space, pid, started = this_process().split()
    assert not is_gone(this_process())
    assert is_gone(
        " ".join([host, boot, space, pid, str(int(started) + 1)])
    )  # the pid belongs to a later process
    assert is_gone(" ".join([host, "earlier-boot", space, pid, started]))
    assert not is_gone(" ".join(["other-host", boot, space, pid, "1"]))
    assert not is_gone(" ".join([host, boot, "pid:[1]", pid, "1"]))  # in a container
    assert not is_gone("")
    assert not is_gone("a b c")


def test_sent_file_of_another_key_is_ignored(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    outbox.add(table(1) | {"step": 3})
    outbox.write_sent(Sent(outbox.key, (tmp_path / OUTBOX).stat().st_size, {"run": "abc"}))
    assert names(outbox) == []
    assert outbox.drop(lambda record: record["step"] > 5) is False
    outbox.add(table(2) | {"step": 7})
    assert outbox.drop(lambda record: record["step"] > 5)
    assert names(outbox) == ["table 1"]
    assert json.loads((tmp_path / "outbox.jsonl").read_text().splitlines()[0])["replaces"] == [
        Sent(**json.loads((tmp_path / "sent.json").read_text())).key
    ]


@pytest.mark.parametrize("other", ["http://m", "http://a-longer-name.example"])
def test_no_unsent_record_is_skipped_if_the_address_of_the_store_changes(
    tmp_path: Path, other: str
) -> None:
    outbox = Outbox(tmp_path, store="http://mlflow")
    for number in range(3):
        outbox.add(table(number))
    _, after_first = next(outbox.unsent(outbox.read_sent()))
    outbox.write_sent(Sent(outbox.key, after_first))
    assert names(outbox) == ["table 1", "table 2"]
    assert names(Outbox(tmp_path, store=other))[-2:] == ["table 1", "table 2"]


def test_damaged_line_hides_no_records_if_the_address_of_mlflow_changes(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, store="http://mlflow")
    outbox.add(table(1))
    with (tmp_path / OUTBOX).open("ab") as stream:
        stream.write(b'{"id": "cut off by a full disk' + b"." * 200)
    again = Outbox(tmp_path)
    again.add(table(2))
    again.write_sent(Sent(again.key, (tmp_path / OUTBOX).stat().st_size))
    again.add(table(3))
    assert names(Outbox(tmp_path, store="http://m")) == ["table 3"]
