"""The starter policy: a small model built from random weights, so that everything can be run without a GPU and without a hub.

What was built once is found again: the folder's name is a digest of all that determines the weights, and its files are checked.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from configs.experiment import Policy
from environments.registry import load_world
from tasks.starter.oracle_cloning import CODE_VERSION, Report, clone_from_oracle

ASSISTED_TOKENS = 100_000
"""From how many tokens on a second process is worth its start."""
MANIFEST = "starter.json"


@dataclass(frozen=True, slots=True)
class StarterReport:
    """A starter policy and how it came about.

    Attributes:
        path: Folder with model and tokenizer, to be loaded like any Hugging Face model.
        parameters: Number of weights.
        vocabulary: Number of tokens that the tokenizer knows.
        demonstrations: Different episodes that were cloned.
        tokens: The tokens that were cloned, repeats counted.
        learned_tokens: Those of them that the oracle wrote: what carried loss.
        first_loss: Mean negative log-likelihood, in nats, over the first tenth of the updates.
        last_loss: The same over the last tenth.
        seconds: Wall time of the building.
        found: Whether an earlier call had built it.
    """

    path: Path
    parameters: int
    vocabulary: int
    demonstrations: int
    tokens: int
    learned_tokens: int
    first_loss: float
    last_loss: float
    seconds: float
    found: bool


def find_starter_policy(policy: Policy, environment: str, seed: int, folder: Path) -> StarterReport | None:
    """The starter policy if `folder` has it complete and undamaged, without loading torch."""
    path = folder / starter_name(policy, environment, seed)
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if any(_digest(path / name) != digest for name, digest in manifest["files"].items()):
            return None
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return StarterReport(path=path, **manifest["report"], found=True)


def build_starter_policy(policy: Policy, environment: str, seed: int, folder: Path, report: Report | None = None) -> StarterReport:
    """Builds the starter policy, or finds it built; the same arguments give the same bytes on the same machine.

    It can be killed at any time: only a complete policy gets its name. Of several calls at once, one builds and the others wait.

    Args:
        policy: The recipe's part: size, demonstrations and learning rate, and how actions are said; for "react" with the oracle's thoughts,
            where the world tells them.
        environment: Name of the world whose oracle demonstrates.
        seed: Of the weights, the detours in the demonstrations, and the order of the batches.
        folder: Where starter policies are kept, each in a folder of its own.
        report: Told of the progress.

    Raises:
        ValueError: The environment has no such task list.
    """
    found = find_starter_policy(policy, environment, seed, folder)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    name = starter_name(policy, environment, seed)
    with _alone(folder / f".{name}.lock"):
        found = find_starter_policy(policy, environment, seed, folder)
        if found is not None:
            return found
        for left_behind in folder.glob(f".{name}.building-*"):
            shutil.rmtree(left_behind)
        building = Path(tempfile.mkdtemp(prefix=f".{name}.building-", dir=folder))
        try:
            made = _build(policy, environment, seed, building, report)
            shutil.rmtree(folder / name, ignore_errors=True)
            building.rename(folder / name)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    return replace(made, path=folder / name)


def _build(policy: Policy, environment: str, seed: int, path: Path, report: Report | None) -> StarterReport:

    began = time.monotonic()
    with _assisted(policy, environment, seed, path) as store:
        cloned = clone_from_oracle(policy, environment, seed, path.parent, store, 0, report)
    cloned.model.save_pretrained(path)
    cloned.tokenizer.save_pretrained(path)
    losses = cloned.losses
    tenth = max(1, len(losses) // 10)
    made = StarterReport(
        path=path,
        parameters=sum(parameter.numel() for parameter in cloned.model.parameters()),
        vocabulary=len(cloned.tokenizer),
        demonstrations=cloned.demonstrations,
        tokens=cloned.tokens,
        learned_tokens=cloned.learned_tokens,
        first_loss=sum(losses[:tenth]) / tenth,
        last_loss=sum(losses[-tenth:]) / tenth,
        seconds=time.monotonic() - began,
        found=False,
    )
    figures = {key: value for key, value in asdict(made).items() if key not in ("path", "found")}
    files = {file.name: _digest(file) for file in sorted(path.iterdir())}
    (path / MANIFEST).write_text(json.dumps({"report": figures, "files": files}, indent=1))
    return made


@contextmanager
def _assisted(policy: Policy, environment: str, seed: int, folder: Path) -> Iterator[Path | None]:
    """A second process that shares the work where there is a core for it; yields the file at which the two meet.

    It comes to the same weights and leaves nothing behind.
    """
    if policy.starter.tokens < ASSISTED_TOKENS or len(os.sched_getaffinity(0)) < 2:
        yield None
        return
    store = folder / "meeting"  # so that what a killed build leaves behind goes with its folder
    command = [*starter_command(policy, environment, seed, folder.parent), "--assist", str(store)]
    assistant = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield store
    finally:
        assistant.kill()
        assistant.wait()
        store.unlink(missing_ok=True)


def starter_command(policy: Policy, environment: str, seed: int, folder: Path) -> list[str]:
    """The command that builds a starter policy in a process of its own; see `build_starter_policy`."""
    spoken = ["--action-format", policy.action_format, "--config", policy.starter.model_dump_json()]
    return [sys.executable, "-m", "tasks.starter", "--environment", environment, "--seed", str(seed), "--folder", str(folder), *spoken]


def starter_name(policy: Policy, environment: str, seed: int) -> str:
    """Names a starter policy by all that determines its weights."""
    version = load_world(environment).version
    facts = json.dumps(
        [policy.starter.model_dump(mode="json"), policy.action_format, environment, version, seed, CODE_VERSION], sort_keys=True
    )
    return f"{environment}-{sha256(facts.encode()).hexdigest()[:16]}"


def _digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Waits until no other process is in here; the system lets go of the lock when a process dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
