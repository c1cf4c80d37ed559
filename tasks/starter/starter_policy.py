"""The starter policy: a small model built from scratch, so that runs need no GPU and no model hub.

A built policy is cached. Its folder name is a digest of everything that determines the weights, and
its files are verified by checksum.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from configs.experiment import Policy
from environments.registry import load_world
from tasks.starter.build_cache import build_once, read_manifest, write_manifest
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


def find_starter_policy(
    policy: Policy, environment: str, seed: int, folder: Path
) -> StarterReport | None:
    """Return the cached starter policy if it is complete and undamaged. Does not load torch."""
    path = folder / starter_name(policy, environment, seed)
    report = read_manifest(path, MANIFEST)
    return None if report is None else StarterReport(path=path, **report, found=True)


def build_starter_policy(
    policy: Policy, environment: str, seed: int, folder: Path, report: Report | None = None
) -> StarterReport:
    """Return the starter policy from the cache, or build it.

    The same arguments produce the same bytes on the same machine. A build can be killed at any
    time. Of several concurrent calls one builds and the others wait.

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
    built = False

    def build(building: Path) -> None:
        nonlocal built
        _build(policy, environment, seed, building, folder, report)
        built = True

    name = starter_name(policy, environment, seed)
    found = build_once(
        folder / name, lambda: find_starter_policy(policy, environment, seed, folder), build
    )
    return replace(found, found=not built)


def _build(
    policy: Policy, environment: str, seed: int, path: Path, cache: Path, report: Report | None
) -> None:
    """Build the starter policy in `path`. `cache` is the parent folder of all starter policies."""
    began = time.monotonic()
    with _with_second_process(policy, environment, seed, path) as store:
        cloned = clone_from_oracle(policy, environment, seed, cache, store, 0, report)
    cloned.model.save_pretrained(path)
    cloned.tokenizer.save_pretrained(path)
    losses = cloned.losses
    tenth = max(1, len(losses) // 10)
    figures = {
        "parameters": sum(parameter.numel() for parameter in cloned.model.parameters()),
        "vocabulary": len(cloned.tokenizer),
        "demonstrations": cloned.demonstrations,
        "tokens": cloned.tokens,
        "learned_tokens": cloned.learned_tokens,
        "first_loss": sum(losses[:tenth]) / tenth,
        "last_loss": sum(losses[-tenth:]) / tenth,
        "seconds": time.monotonic() - began,
    }
    write_manifest(path, MANIFEST, figures)


@contextmanager
def _with_second_process(
    policy: Policy, environment: str, seed: int, folder: Path
) -> Iterator[Path | None]:
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
    options = [
        "--action-format",
        policy.action_format,
        "--config",
        policy.starter.model_dump_json(),
    ]
    return [
        sys.executable,
        "-m",
        "tasks.starter",
        "--environment",
        environment,
        "--seed",
        str(seed),
        "--folder",
        str(folder),
        *options,
    ]


def starter_name(policy: Policy, environment: str, seed: int) -> str:
    """Return a folder name derived from everything that determines the weights."""
    version = load_world(environment).version
    facts = json.dumps(
        [
            policy.starter.model_dump(mode="json"),
            policy.action_format,
            environment,
            version,
            seed,
            CODE_VERSION,
        ],
        sort_keys=True,
    )
    return f"{environment}-{sha256(facts.encode()).hexdigest()[:16]}"
