"""Tests of commands whose runs folder is damaged or cannot be created.

They print one message that names the file, and no traceback.
"""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from environments.client import EnvironmentClient
from tasks.rollout.trajectory_parquet import read_trajectories
from tests.support.playing import starting
from tests.support.processes import run_module

COLLECT = ("flows.collect", "textcraft", "--oracle", "--tasks", "wood-test", "--n-tasks", "4")
EVALUATE = (
    "flows.evaluate",
    "textcraft",
    "--oracle",
    "--tasks",
    "wood-test",
    "--n-tasks",
    "4",
    "--samples",
    "1",
)


def run(runs: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_module(*command, AGENTGYM_RUNS=str(runs), **variables)


@pytest.mark.slow
def test_truncated_part_is_played_again(tmp_path: Path, prefect_api: dict[str, str]) -> None:
    assert run(tmp_path, *EVALUATE, **prefect_api).returncode == 0
    [part] = tmp_path.rglob("part-*.parquet")
    complete = read_trajectories(part)
    part.write_bytes(part.read_bytes()[:500])
    again = run(tmp_path, *EVALUATE, **prefect_api)
    assert again.returncode == 0, again.stderr
    assert "Traceback" not in again.stderr + again.stdout
    assert again.stderr.count(str(part)) == 1
    [new] = part.parent.glob("part-*.parquet")
    played = read_trajectories(new)
    assert [(t.task, t.member, t.reward) for t in played] == [
        (t.task, t.member, t.reward) for t in complete
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [COLLECT, EVALUATE, ("flows.scaling_inter", "quickstart"), ("tasks.provision.services", "up")],
)
def test_unusable_runs_folder_is_named_with_its_setting(
    module: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    for runs in (file, file / "runs", Path("/proc/nowhere/runs")):
        done = run(runs, *module)
        assert done.returncode not in (0, None)
        assert "Traceback" not in done.stderr
        assert str(runs) in done.stderr
        assert "AGENTGYM_RUNS" in done.stderr


def test_sessions_that_cannot_be_closed_are_reported_once(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        with starting("textcraft", state_dir) as start:
            server = start()
            async with EnvironmentClient([server.url]) as client:
                sessions = [(await client.start(0))[0] for _ in range(12)]
                server.end()
                await asyncio.gather(*(client.close(session) for session in sessions))

    with caplog.at_level("WARNING", logger="environments.client"):
        asyncio.run(play())
    assert len([record for record in caplog.records if record.name == "environments.client"]) == 1
