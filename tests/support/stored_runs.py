"""Run folders for upload tests, and a storage that fails after some changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.tracking import run_copy
from tasks.tracking.outbox import Outbox
from tasks.tracking.shared_storage import SharedStorage
from tasks.training.checkpoint import publish, superseded

FINGERPRINT = "1a2b3c"
NAME = f"small-{FINGERPRINT}"


def add_checkpoint(
    run: Path, step: int, content: bytes = b"weights of step ", files: int = 2
) -> None:
    written = run / "checkpoints" / ".unfinished" / "new"
    (written / "optimiser").mkdir(parents=True)
    for number in range(files):
        (written / f"model-{number}.safetensors").write_bytes(
            content + f"{step}, {number}".encode()
        )
    (written / "optimiser" / "shard-00001-model-00001-of-00001.safetensors").write_bytes(
        b"moments" + bytes([step])
    )
    (written / "optimiser" / "groups.json").write_bytes(b"of the moments")
    publish(written, run / "checkpoints", step, FINGERPRINT)


def add_step(run: Path, step: int) -> None:
    add_results(run, step)
    mark_step(run, step)


def mark_step(run: Path, step: int) -> None:
    (run / "done").mkdir(exist_ok=True)
    (run / "done" / f"phase-{step}").touch()


def add_results(run: Path, step: int) -> None:
    """Write the results of a step, which exist before its checkpoint."""
    for name in ("rollouts", "evaluations"):
        (run / name).mkdir(exist_ok=True)
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": step, "reward": step / 10}) + "\n")
    (run / "rollouts" / f"step-{step:06d}.parquet").write_bytes(f"rollouts of {step}".encode())
    (run / "evaluations" / f"phase-{step}.json").write_text(f"{{{step}}}")
    Outbox(run / "records", "small", "runs").add(
        {"id": f"step {step}", "kind": "metrics", "step": step, "values": {}}
    )


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
    """Return the files of a run by name, without those that are not uploaded."""
    files = {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file()
    }
    uploaded = {
        name: content
        for name, content in files.items()
        if not name.startswith((".", "owner.lock", "trainer.log", "records/send"))
    }
    for name in [name for name in uploaded if name == "records/outbox.jsonl"]:
        # The first line holds the key, which changes when a run is fetched.
        uploaded[name] = uploaded[name].partition(b"\n")[2]
    return uploaded


def restored(storage: SharedStorage, folder: Path) -> tuple[int | None, Path]:
    run = folder / NAME
    run.mkdir(parents=True)
    return run_copy.restore(storage, run, FINGERPRINT), run


class CutError(Exception):
    pass


class Cut:
    """A storage that raises `CutError` after a number of changes, as if its process had ended.

    It transfers files one by one, so an upload of several files can stop in between.
    """

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
