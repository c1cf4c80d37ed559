"""Launch files: what they turn into, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from configs.infrastructure import SettingsError, infra_settings
from configs.launch import LaunchError, launch_names, load_launch
from tasks.training.local_trainer import launch_command


@pytest.mark.parametrize("name", launch_names())
def test_a_launch_file_starts_as_many_processes_as_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_LAUNCH", name)
    launch = load_launch(name)
    command = launch_command(infra_settings(), Path("job.json"), Path("verdict"))
    assert command[command.index("--nproc_per_node") + 1] == str(launch.processes)
    assert command[command.index("--nnodes") + 1] == str(launch.nodes)
    assert ("loopback" in command) == (launch.nodes == 1)
    monkeypatch.setenv("AGENTGYM_TRAINER_PROCESSES", "3")
    command = launch_command(infra_settings(), Path("job.json"), Path("verdict"))
    assert command[command.index("--nproc_per_node") + 1] == "3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sharding: fsdp1", "sharding: .*fsdp1"),
        ("nodes: 2\nprocesses: 8", "2 nodes need first_node"),
        ("distributed_type: FSDP", "distributed_type"),
        ("- a", "not a valid launch file"),
        ("a: [", "not YAML"),
    ],
)
def test_a_wrong_launch_file_is_refused_with_the_field(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(LaunchError, match=message):
        load_launch(str(tmp_path / "mine.yaml"))


def test_a_launch_file_that_is_not_there_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_LAUNCH", "one-node-fsdp")
    with pytest.raises(SettingsError, match=r"(?s)AGENTGYM_LAUNCH.*Did you mean 'one-node-fsdp2'"):
        infra_settings()


def test_processes_wait_for_each_other_as_long_as_batches_may_take() -> None:
    from tasks.training.process_group import BETWEEN_BATCHES, patience
    from tests.support.recorded import small_experiment

    once, thrice = small_experiment(name="grpo"), small_experiment(name="grpo", max_resample_rounds=2)
    assert patience(once) == timedelta(seconds=once.rollout.batch_seconds) + BETWEEN_BATCHES
    assert patience(thrice) == timedelta(seconds=3 * once.rollout.batch_seconds) + BETWEEN_BATCHES
