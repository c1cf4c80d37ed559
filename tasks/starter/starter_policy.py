"""The starter policy: a small model built from scratch, so that runs need no GPU and no model hub.

A built policy is cached. Its folder name is a digest of everything that determines the weights, and
its files are verified by checksum.
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
"""Token budget from which a second process saves more time than it takes to start."""
MANIFEST = "starter.json"


@dataclass(frozen=True, slots=True)
class StarterReport:
    """A starter policy and its training metrics.

    Attributes:
        path: Folder with model and tokenizer, which loads like any Hugging Face model.
        parameters: Number of weights.
        vocabulary: Number of tokens in the tokenizer.
        demonstrations: Number of distinct episodes cloned.
        tokens: Number of tokens cloned, including repeats.
        learned_tokens: Number of cloned tokens that the oracle wrote.
        first_loss: Mean loss over the first tenth of the updates, in nats.
        last_loss: Mean loss over the last tenth of the updates, in nats.
        seconds: Wall time of the build in seconds.
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
    """Return the cached starter policy if it is complete and undamaged. Does not load torch."""
    path = folder / starter_name(policy, environment, seed)
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if any(_digest(path / name) != digest for name, digest in manifest["files"].items()):
            return None
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return StarterReport(path=path, **manifest["report"], found=True)


def build_starter_policy(policy: Policy, environment: str, seed: int, folder: Path, report: Report | None = None) -> StarterReport:
    """Return the starter policy from the cache, or build it.

    The same arguments produce the same bytes on the same machine. A build can be killed at any
    time, since only a complete policy gets its final name. Of several concurrent calls one builds
    and the others wait.

    Args:
        policy: The recipe's policy section: size, demonstrations, learning rate and action format.
            With "react" the demonstrations include the oracle's thoughts, if the environment
            provides them.
        environment: Name of the environment whose oracle demonstrates.
        seed: Seed of the weights, the detours and the batch order.
        folder: Parent folder of all starter policies.
        report: Progress callback, or None.

    Raises:
        ValueError: The environment has no such task list.
    """
    found = find_starter_policy(policy, environment, seed, folder)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    name = starter_name(policy, environment, seed)
    with _locked(folder / f".{name}.lock"):
        found = find_starter_policy(policy, environment, seed, folder)
        if found is not None:
            return found
        for unfinished in folder.glob(f".{name}.building-*"):
            shutil.rmtree(unfinished)
        building = Path(tempfile.mkdtemp(prefix=f".{name}.building-", dir=folder))
        try:
            result = _build(policy, environment, seed, building, report)
            shutil.rmtree(folder / name, ignore_errors=True)
            building.rename(folder / name)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    return replace(result, path=folder / name)


def _build(policy: Policy, environment: str, seed: int, path: Path, report: Report | None) -> StarterReport:

    began = time.monotonic()
    with _with_second_process(policy, environment, seed, path) as store:
        cloned = clone_from_oracle(policy, environment, seed, path.parent, store, 0, report)
    cloned.model.save_pretrained(path)
    cloned.tokenizer.save_pretrained(path)
    losses = cloned.losses
    tenth = max(1, len(losses) // 10)
    result = StarterReport(
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
    figures = {key: value for key, value in asdict(result).items() if key not in ("path", "found")}
    files = {file.name: _digest(file) for file in sorted(path.iterdir())}
    (path / MANIFEST).write_text(json.dumps({"report": figures, "files": files}, indent=1))
    return result


@contextmanager
def _with_second_process(policy: Policy, environment: str, seed: int, folder: Path) -> Iterator[Path | None]:
    """Start a second process that shares the work, if a CPU core is free for it.

    The process trains to the same weights and writes no files.

    Yields:
        The file through which the two processes connect, or None without a second process.
    """
    if policy.starter.tokens < ASSISTED_TOKENS or len(os.sched_getaffinity(0)) < 2:
        yield None
        return
    # Inside the build folder, so that it is deleted together with a killed build.
    store = folder / "meeting"
    command = [*starter_command(policy, environment, seed, folder.parent), "--assist", str(store)]
    assistant = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield store
    finally:
        assistant.kill()
        assistant.wait()
        store.unlink(missing_ok=True)


def starter_command(policy: Policy, environment: str, seed: int, folder: Path) -> list[str]:
    """Return the command that builds a starter policy in a separate process.

    The arguments are those of `build_starter_policy`.
    """
    options = ["--action-format", policy.action_format, "--config", policy.starter.model_dump_json()]
    return [sys.executable, "-m", "tasks.starter", "--environment", environment, "--seed", str(seed), "--folder", str(folder), *options]


def starter_name(policy: Policy, environment: str, seed: int) -> str:
    """Return a folder name derived from everything that determines the weights."""
    version = load_world(environment).version
    facts = json.dumps(
        [policy.starter.model_dump(mode="json"), policy.action_format, environment, version, seed, CODE_VERSION], sort_keys=True
    )
    return f"{environment}-{sha256(facts.encode()).hexdigest()[:16]}"


def _digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold an exclusive file lock. The operating system releases it when the process dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
