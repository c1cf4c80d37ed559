"""A run's folder in shared storage: in a folder, in memory and in a real S3 server, cut off at every point."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest

from configs.infrastructure import SettingsError, infra_settings
from flows.shared_storage import with_kept_starter
from tasks.tracking import run_copy, run_lease, run_mirror
from tasks.tracking.outbox import Outbox
from tasks.tracking.owner import RunBusyError, this_process
from tasks.tracking.run_lease import RunLease, RunTakenOverError
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage, SharedStorageError, opened
from tasks.training.checkpoint import latest, publish, superseded
from tests.support.s3_server import BUCKET, Way, credentials, s3_server
from tests.support.small_runs import ROOT

FINGERPRINT = "1a2b3c"
NAME = f"small-{FINGERPRINT}"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def way(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """The way of this process to the server."""
    way = Way(server)
    for name, value in credentials(way.address).items():
        monkeypatch.setenv(name, value)
    yield way
    way.close()


@pytest.fixture(params=["folder", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SharedStorage:
    if request.param == "s3":
        request.getfixturevalue("way")
    (tmp_path / "stored").mkdir()
    url = {
        "folder": f"file://{tmp_path}/stored",
        "memory": f"memory://{tmp_path.name}",
        "s3": f"s3://{BUCKET}/{tmp_path.name}",
    }[request.param]
    made = opened(url)
    assert made is not None
    return made


@pytest.fixture
def of_s3(way: Way, tmp_path: Path) -> SharedStorage:
    return SharedStorage(f"s3://{BUCKET}/{tmp_path.name}")


def add_checkpoint(run: Path, step: int, content: bytes = b"weights of step ", files: int = 2) -> None:
    written = run / "checkpoints" / ".unfinished" / "new"
    (written / "optimiser").mkdir(parents=True)
    for number in range(files):
        (written / f"model-{number}.safetensors").write_bytes(content + f"{step}, {number}".encode())
    (written / "optimiser" / "__0_0.distcp").write_bytes(b"moments" + bytes([step]))
    (written / "optimiser" / ".metadata").write_bytes(b"of the moments")
    publish(written, run / "checkpoints", step, FINGERPRINT)


def add_step(run: Path, step: int) -> None:
    for name in ("rollouts", "evaluations", "done"):
        (run / name).mkdir(exist_ok=True)
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": step, "reward": step / 10}) + "\n")
    (run / "rollouts" / f"step-{step:06d}.parquet").write_bytes(f"rollouts of {step}".encode())
    (run / "evaluations" / f"phase-{step}.json").write_text(f"{{{step}}}")
    (run / "done" / f"phase-{step}").touch()
    Outbox(run / "records", "small", "runs").add({"id": f"step {step}", "kind": "metrics", "step": step, "values": {}})


def make_run(parent: Path, steps: int = 2) -> Path:
    run = parent / NAME
    run.mkdir(parents=True)
    (run / "owner.lock").write_text("1")
    (run / "trainer.log").write_text("log")
    for step in range(1, steps + 1):
        add_checkpoint(run, step)
        add_step(run, step)
    return run


def keep_one(steps: list[int]) -> list[int]:
    return superseded(steps, 1, ())


def upload(storage: Any, run: Path, drop: Callable[[list[int]], list[int]] = lambda _: []) -> None:
    run_copy.upload(storage, run, drop, lambda: None)


def contents(run: Path) -> dict[str, bytes]:
    """Everything of a run but what stays on its machine."""
    files = {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    there = {name: content for name, content in files.items() if not name.startswith((".", "owner.lock", "trainer.log", "records/send"))}
    for name in [name for name in there if name == "records/outbox.jsonl"]:
        there[name] = there[name].partition(b"\n")[2]  # its first line has the key, which is another after a fetch
    return there


def restored(storage: SharedStorage, folder: Path) -> tuple[int | None, Path]:
    run = folder / NAME
    run.mkdir(parents=True)
    return run_copy.restore(storage, run, FINGERPRINT), run


def test_an_empty_machine_gets_the_newest_checkpoint_and_everything_beside_the_checkpoints(storage: SharedStorage, tmp_path: Path) -> None:
    run = make_run(tmp_path / "here")
    upload(storage, run)
    step, fetched = restored(storage, tmp_path / "there")
    assert step == 2
    expected = {name: content for name, content in contents(run).items() if not name.startswith("checkpoints/step-000001")}
    assert contents(fetched) == expected
    key, anew = Outbox(run / "records").key, Outbox(fetched / "records")
    assert anew.replaces == [key]  # MLflow may have been given more than was uploaded
    assert run_copy.restore(storage, fetched, FINGERPRINT) is None  # it is as far
    assert not list(fetched.glob("**/.fetched*"))


def test_what_is_there_is_not_uploaded_again_and_what_changed_is(storage: SharedStorage, tmp_path: Path) -> None:
    run, put = make_run(tmp_path), []

    class Seen(Cut):
        def put(self, files: Mapping[str, Path]) -> None:
            put.extend(files)
            super().put(files)

    upload(storage, run)
    upload(Seen(storage), run)
    assert put == []
    assert run_copy.is_stored(run, storage.url)
    add_step(run, 3)
    assert not run_copy.is_stored(run, storage.url)
    upload(Seen(storage), run)
    new = {"metrics.jsonl", "rollouts/step-000003.parquet", "evaluations/phase-3.json", "done/phase-3"}
    assert set(put) == {f"{NAME}/{name}" for name in new}


def test_the_storage_keeps_the_checkpoints_that_are_to_be_kept_and_none_that_was_rolled_back(
    storage: SharedStorage, tmp_path: Path
) -> None:
    run = make_run(tmp_path, 3)
    upload(storage, run)
    upload(storage, run, keep_one)
    assert {name.split("/")[0] for name in storage.files(f"{NAME}/checkpoints")} == {"step-000003"}
    run_copy.shutil.rmtree(run / "checkpoints" / "step-000003")  # as `roll_back` does
    upload(storage, run, keep_one)
    assert {name.split("/")[0] for name in storage.files(f"{NAME}/checkpoints")} == {"step-000002"}


def test_a_damaged_checkpoint_replaces_no_whole_one_and_one_that_was_made_again_does(storage: SharedStorage, tmp_path: Path) -> None:
    run = make_run(tmp_path / "here")
    upload(storage, run)
    weights = run / "checkpoints" / "step-000002" / "model-0.safetensors"
    weights.write_bytes(b"torn")
    manifest = run / "checkpoints" / "step-000002" / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")  # so that it is looked at
    upload(storage, run)
    step, fetched = restored(storage, tmp_path / "there")
    assert (step, (fetched / weights.relative_to(run)).read_bytes()) == (2, b"weights of step 2, 0")
    add_checkpoint(run, 2, b"other weights of step ")
    upload(storage, run)
    step, fetched = restored(storage, tmp_path / "elsewhere")
    assert (step, (fetched / weights.relative_to(run)).read_bytes()) == (2, b"other weights of step 2, 0")


def test_a_checkpoint_that_is_damaged_in_the_storage_is_passed_over(storage: SharedStorage, tmp_path: Path) -> None:
    run = make_run(tmp_path / "here")
    upload(storage, run)
    storage.write(f"{NAME}/checkpoints/step-000002/model-0.safetensors", b"weights of step 2, X")
    step, fetched = restored(storage, tmp_path / "there")
    assert step == 1
    assert latest(fetched / "checkpoints", FINGERPRINT)[1] == []


def test_a_machine_that_is_behind_the_storage_is_brought_to_its_state_and_one_that_is_further_goes_on(
    storage: SharedStorage, tmp_path: Path
) -> None:
    behind = make_run(tmp_path / "behind", 1)
    upload(storage, make_run(tmp_path / "here", 2))
    assert run_copy.restore(storage, behind, FINGERPRINT) == 2
    assert (behind / "metrics.jsonl").read_text().count("\n") == 2
    assert run_copy.restore(storage, make_run(tmp_path / "further", 3), FINGERPRINT) is None


class CutError(Exception):
    pass


class Cut:
    """A storage whose process is gone after so many changes; of several files that are put, one is there then."""

    def __init__(self, storage: SharedStorage, changes: int = 1_000_000) -> None:
        self._storage, self._left = storage, changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def _change(self) -> None:
        if self._left == 0:
            raise CutError
        self._left -= 1

    def put(self, files: Mapping[str, Path]) -> None:
        for name, path in files.items():
            self._change()
            self._storage.put({name: path})

    def get(self, files: Mapping[str, Path]) -> None:
        for name, path in files.items():
            self._change()
            self._storage.get({name: path})

    def write(self, name: str, content: bytes) -> None:
        self._change()
        self._storage.write(name, content)

    def remove(self, folder: str) -> None:
        self._change()
        self._storage.remove(folder)


def test_an_upload_that_is_cut_off_anywhere_leaves_a_run_to_go_on_from_and_is_gone_on_with(tmp_path: Path) -> None:
    for changes in range(10_000):
        case = tmp_path / str(changes)
        (case / "stored").mkdir(parents=True)
        storage = SharedStorage(str(case / "stored"))
        run = make_run(case / "here", 2)
        upload(storage, run)
        for step in (3, 4):
            add_checkpoint(run, step)
            add_step(run, step)
        try:
            upload(Cut(storage, changes), run, keep_one)
            break
        except CutError:
            pass
        step, fetched = restored(storage, case / "meanwhile")
        assert step in (2, 3, 4)
        assert latest(fetched / "checkpoints", FINGERPRINT)[1] == []
        for done in (fetched / "done").iterdir():
            number = int(done.name.removeprefix("phase-"))
            assert number <= step, "marked as done, but its checkpoint is not there"
            assert (fetched / "evaluations" / f"phase-{number}.json").read_text() == f"{{{number}}}"
            assert (fetched / "rollouts" / f"step-{number:06d}.parquet").exists()
        upload(storage, run, keep_one)
        step, fetched = restored(storage, case / "there")
        assert step == 4
        newest = {name: content for name, content in contents(run).items() if not name.startswith("checkpoints/") or "step-000004" in name}
        assert contents(fetched) == newest
    assert changes > 10


def test_a_fetch_that_is_cut_off_anywhere_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir()
    storage = SharedStorage(str(tmp_path / "stored"))
    run = make_run(tmp_path / "here")
    upload(storage, run)
    for gets in range(10_000):
        there = tmp_path / f"there-{gets}" / NAME
        there.mkdir(parents=True)
        try:
            run_copy.restore(Cut(storage, gets), there, FINGERPRINT)  # type: ignore[arg-type]
            break
        except CutError:
            pass
        assert run_copy.restore(storage, there, FINGERPRINT) == 2
        assert contents(there) == {name: content for name, content in contents(run).items() if "step-000001/" not in name}
    assert gets > 8


UPLOADER = """
import sys
from pathlib import Path
from tasks.tracking.run_mirror import RunMirror
from tasks.tracking.shared_storage import SharedStorage
url, folder = sys.argv[1:]
with RunMirror(SharedStorage(url), Path(folder), "1a2b3c", lambda steps: []):
    pass
"""


def test_a_process_that_is_killed_in_the_middle_of_an_upload_over_http_is_gone_on_with_by_the_next(
    of_s3: SharedStorage, way: Way, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "here", 1)
    upload(of_s3, run)
    add_checkpoint(run, 2, os.urandom(1 << 20), files=24)
    add_step(run, 2)
    before, way.stalls_at = way.sent, way.sent + (12 << 20)
    command = [sys.executable, "-c", UPLOADER, of_s3.url, str(run)]
    uploader = subprocess.Popen(command, cwd=ROOT, env={**os.environ})
    assert way.stalled.wait(300)
    uploader.send_signal(signal.SIGKILL)
    assert uploader.wait() == -signal.SIGKILL
    way.close()
    way.stalls_at = None
    way.stalled.clear()
    way.open()
    arrived = [name for name in of_s3.files(f"{NAME}/checkpoints/step-000002") if name.startswith("model-")]
    assert 0 < len(arrived) < 24
    assert restored(of_s3, tmp_path / "meanwhile")[0] == 1
    assert not list((tmp_path / "meanwhile" / NAME / "done").glob("phase-2"))

    before = way.sent
    subprocess.run(
        command, cwd=ROOT, env={**os.environ}, check=True, timeout=300
    )  # the owner before it is surely gone: nothing is waited for
    assert way.sent - before < (24 - len(arrived) + 2) << 20, "what had arrived was uploaded again"
    step, fetched = restored(of_s3, tmp_path / "there")
    assert step == 2
    assert contents(fetched) == {name: content for name, content in contents(run).items() if "step-000001/" not in name}
    assert not list((run / "checkpoints").glob(".uploaded-*"))


def test_work_goes_on_while_the_storage_is_away_and_all_of_it_arrives(
    of_s3: SharedStorage, way: Way, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_mirror, "LONGEST_PAUSE_S", 1.0)
    caplog.set_level(logging.WARNING, run_mirror.__name__)
    run = make_run(tmp_path / "here", 1)
    with RunMirror(of_s3, run, FINGERPRINT, keep_one) as mirror:
        way.close()
        for step in (2, 3):
            add_checkpoint(run, step)
            add_step(run, step)
            mirror.wake()
        wait_for_warning(caplog, "cannot be written to")
        mirror.check()
        way.open()
    assert "can be written to again" in caplog.text
    step, fetched = restored(of_s3, tmp_path / "there")
    assert step == 3
    assert contents(fetched) == {name: content for name, content in contents(run).items() if "0001/" not in name and "0002/" not in name}
    assert of_s3.read(f"{NAME}/owner.json") is None


def test_the_end_while_the_storage_is_away_says_so_and_the_next_call_uploads(
    of_s3: SharedStorage, way: Way, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_mirror, "PATIENCE_S", 1.0)
    run = make_run(tmp_path / "here", 1)
    with RunMirror(of_s3, run, FINGERPRINT, keep_one):
        way.close()
        add_checkpoint(run, 2)
        add_step(run, 2)
    assert "the same command uploads it" in caplog.text
    assert not run_copy.is_stored(run, of_s3.url)
    way.open()
    with RunMirror(of_s3, run, FINGERPRINT, keep_one):
        pass
    assert run_copy.is_stored(run, of_s3.url)
    assert restored(of_s3, tmp_path / "there")[0] == 2


def wait_for_warning(caplog: pytest.LogCaptureFixture, words: str) -> None:
    while words not in caplog.text:
        threading.Event().wait(0.05)


def lease_of_another_machine(storage: SharedStorage, name: str, monkeypatch: pytest.MonkeyPatch) -> RunLease:
    elsewhere = " ".join(["node-7/", *this_process().split()[1:]])
    with monkeypatch.context() as there:
        there.setattr(run_lease, "this_process", lambda: elsewhere)
        return RunLease(storage, name)


def test_a_run_that_another_machine_carries_out_is_refused_and_one_that_it_left_is_taken_over(
    storage: SharedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lease, "LOOK_S", 0.1)
    theirs = lease_of_another_machine(storage, "run/owner.json", monkeypatch)
    theirs.take()
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            theirs.renew()

    heart = threading.Thread(target=beat)
    heart.start()
    ours = RunLease(storage, "run/owner.json")
    with pytest.raises(RunBusyError, match=r"of node-7 is already carrying out this run .*run/owner.json"):
        ours.take()
    stop.set()
    heart.join()
    monkeypatch.setattr(run_lease, "LEASE_S", 0.3)
    ours.take()
    with pytest.raises(RunTakenOverError, match="carries this run out now"):
        theirs.renew()
    theirs.release()  # which is not theirs to give back
    ours.renew()
    ours.release()
    assert storage.files("run") == {}


def test_what_another_machine_took_over_is_not_written_to_any_more(
    storage: SharedStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lease, "LEASE_S", 0.0)
    run = make_run(tmp_path / "here", 1)
    with RunMirror(storage, run, FINGERPRINT, keep_one) as mirror:
        while not run_copy.is_stored(run, storage.url):
            threading.Event().wait(0.05)
        lease_of_another_machine(storage, f"{NAME}/owner.json", monkeypatch).take()
        before = storage.files(NAME)
        add_step(run, 2)
        mirror.wake()
        while mirror._taken_over is None:
            threading.Event().wait(0.05)
        with pytest.raises(RunTakenOverError, match="what was done here meanwhile is not uploaded"):
            mirror.check()
    assert {**storage.files(NAME), "owner.json": 0} == {**before, "owner.json": 0}


def test_records_that_come_during_an_upload_do_not_get_ahead_of_the_files_that_they_name(storage: SharedStorage, tmp_path: Path) -> None:
    run = make_run(tmp_path / "here")

    class Growing(Cut):
        def put(self, files: Mapping[str, Path]) -> None:
            (run / "records" / "traces.parquet").write_bytes(b"traces")
            Outbox(run / "records").add({"id": "traces", "kind": "traces", "file": "records/traces.parquet"})
            super().put(files)

    upload(Growing(storage), run)
    for folder in ("before", "after"):
        _, fetched = restored(storage, tmp_path / folder)
        assert ("traces" in Outbox(fetched / "records")) == (fetched / "records" / "traces.parquet").exists() == (folder == "after")
        upload(storage, run)


def test_a_starter_policy_is_built_once_for_all_machines(storage: SharedStorage, tmp_path: Path) -> None:
    def build(machine: str) -> str:
        folder = tmp_path / machine / "tiny"
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_text(f"built by {machine}")
            (folder / "starter.json").write_text("{}")
        return str(folder)

    for machine in ("first", "second"):
        policy = with_kept_starter(storage, tmp_path / machine, "tiny", lambda machine=machine: build(machine))
        assert (Path(policy) / "model.safetensors").read_text() == "built by first"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///no/such/folder", r"cannot open it \(there is no folder /no/such/folder\)\. Make the folder, mount it on every node"),
        (f"s3://{BUCKET}-that-is-not/runs", r"cannot write to it \(The specified bucket does not exist\)\. The bucket must exist"),
        ("gs://bucket/runs", rf"the package for gs:// is not installed: pip install 'gcsfs=={fsspec.__version__}', on every node"),
        ("nothing://bucket", r"which fsspec cannot open: Protocol not known: nothing"),
    ],
)
def test_a_storage_that_cannot_be_used_is_refused_with_setting_address_and_what_to_do(way: Way, url: str, said: str) -> None:
    with pytest.raises(SharedStorageError, match=f"^AGENTGYM_SHARED_STORAGE is {url}, .*{said}"):
        opened(url)


def test_a_storage_that_does_not_answer_is_refused(way: Way) -> None:
    way.close()
    with pytest.raises(SharedStorageError, match=r"cannot write to it \(Could not connect to the endpoint"):
        opened(f"s3://{BUCKET}/runs")


def test_a_relative_path_is_refused_as_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_SHARED_STORAGE", "bucket/runs")
    with pytest.raises(SettingsError, match=r"AGENTGYM_SHARED_STORAGE.*give the absolute path of a folder, or a URL"):
        infra_settings()
