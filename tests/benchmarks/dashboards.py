"""Benchmark of the viewer with 100,000 trajectories: latency of its pages, and its memory.

The trajectories are TextCraft episodes of a good and a bad player, each with a unique text, in
files of 128 as in training. There is no baseline, because no other viewer reads these files.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil
import yaml

from configs.recipe import load_recipe
from environments.registry import load_world
from tasks.provision.local import LocalServer
from tasks.rollout.trajectory import Trajectory
from tasks.rollout.trajectory_parquet import write_trajectories
from tests.benchmarks.load import row
from tests.support.recorded_runs import played
from tests.support.viewer_login import open_with_login

TRAJECTORIES, FILE, RUNS, EPISODES = 100_000, 128, 8, 120
ROUNDS = 9
REQUESTS = {
    "first page of the list": "/trajectories",
    "filter: outcome, turns and step": "/trajectories?outcome=truncated&turns_from=4&step_from=50",
    "filter, in another order": "/trajectories?kind=rollouts&order=-turns",
    "search, one hit": "/trajectories?text=mark-077777-",
    "search, many hits": "/trajectories?text=crafted",
    "search, none": "/trajectories?text=no+such+text",
    "runs": "/",
}


def episodes() -> Iterator[Trajectory]:
    """Yield played episodes, each made unique by a mark in its first observation."""
    tasks = load_world("textcraft").tasks("train")
    originals = [
        played("textcraft", tasks[n % len(tasks)], skill=(0.3, 0.9)[n % 2], horizon=10, seed=n)
        for n in range(EPISODES)
    ]
    for number in range(TRAJECTORIES):
        each = deepcopy(originals[number % EPISODES])
        each.first_observation += f"\nmark-{number:06d}-"
        each.group, each.member = number % FILE // 8, number % 8
        yield each


def write(runs: Path) -> None:
    """Write the episodes as RUNS runs."""
    source, files = episodes(), -(-TRAJECTORIES // FILE)
    for number in range(files):
        batch = [each for _, each in zip(range(FILE), source, strict=False)]
        folder = runs / f"bench-{number % RUNS:012d}"
        if number < RUNS:
            folder.mkdir(parents=True)
            recipe = load_recipe("textcraft", {"seeds.training": number}).model_dump(mode="json")
            (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        write_trajectories(folder / "rollouts" / f"step-{number // RUNS + 1:06d}.parquet", batch)


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark: milliseconds of each page over the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        write(runs)
        command = [sys.executable, "-m", "dashboards", "--runs", folder, "--port", "{port}"]
        viewer = LocalServer("viewer", command, health_path="/health", start_deadline_s=120.0)
        began = time.perf_counter()
        viewer.start()
        try:
            while f"{TRAJECTORIES:,} trajectories" not in get(f"{viewer.url}/trajectories", runs):
                time.sleep(0.5)
            rows = [row("viewer: first read of all files", [time.perf_counter() - began], "s")]
            for name, address in REQUESTS.items():
                seconds = [timed(viewer.url + address, runs) for _ in range(ROUNDS)]
                rows.append(row(f"viewer: {name}", [1000 * each for each in seconds], "ms"))
            # The subreaper has the same words on its command line, and less memory.
            ours = [
                p
                for p in psutil.process_iter(["cmdline"])
                if {"dashboards", folder} <= set(p.info["cmdline"] or [])
            ]
            rows.append(
                row("viewer: memory", [max(p.memory_info().rss for p in ours) / 2**20], "MiB")
            )
            return rows
        finally:
            viewer.end()


def get(address: str, runs: Path) -> str:
    """Return the text of a page."""
    with open_with_login(address, runs) as answer:
        text: str = answer.read().decode()
        return text


def timed(address: str, runs: Path) -> float:
    """Return the seconds of a request for a page."""
    began = time.perf_counter()
    get(address, runs)
    return time.perf_counter() - began
