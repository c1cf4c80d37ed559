"""Launch files: what they turn into, and what is refused."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from configs.infrastructure import InfraSettings, SettingsError, infra_settings
from configs.launch import LaunchError, launch_names, load_launch
from tasks.training.local_trainer import launch_command


@pytest.mark.parametrize("name", launch_names())
def test_a_launch_file_starts_as_many_processes_as_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_LAUNCH", name)
    monkeypatch.setenv("AGENTGYM_RAY_ADDRESS", "auto" if name.startswith("ray") else "")
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


def test_on_a_ray_cluster_the_nodes_of_the_trainer_meet_where_ray_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_LAUNCH", "ray-two-nodes-fsdp2")
    with pytest.raises(SettingsError, match="whose first_node Ray says, but ray_address is empty"):
        infra_settings()
    monkeypatch.setenv("AGENTGYM_RAY_ADDRESS", "auto")
    command = launch_command(infra_settings(), Path("job.json"), Path("verdict"), 1, ("10.0.0.7", 21000))
    place = command[command.index("--nnodes") : command.index("-m", command.index("--nnodes"))]
    assert place == ["--nnodes", "2", "--nproc_per_node", "8", "--node_rank", "1", "--master_addr", "10.0.0.7", "--master_port", "21000"]


def test_a_folder_of_runs_that_means_another_one_on_each_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_RAY_ADDRESS", "auto")
    monkeypatch.setenv("AGENTGYM_RUNS", "runs")
    with pytest.raises(SettingsError, match="runs is runs; beside ray_address it must be the absolute path"):
        infra_settings()


@pytest.mark.parametrize(("name", "value"), [("ENVIRONMENT_BACKEND", "container"), ("ENGINE_GPUS", "1")])
def test_what_would_place_processes_beside_ray_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_RAY_ADDRESS", "auto")
    monkeypatch.setenv("AGENTGYM_ENGINE_SERVERS", "1")
    monkeypatch.setenv(f"AGENTGYM_{name}", value)
    with pytest.raises(SettingsError, match=f"{name.lower()} cannot be set beside ray_address"):
        infra_settings()


def test_a_server_with_two_gpus_divides_its_model_over_them() -> None:
    from tasks.inference.launch_command import command

    sizes = {"context_length": 64, "max_num_seqs": 2, "gpu_memory_fraction": 0.5, "cpu_cache_gb": 1}
    assert "--tensor-parallel-size" not in command("m", dtype="float32", gpus=1, **sizes)
    words = command("m", dtype="float32", gpus=2, **sizes)
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert "--gpu-memory-utilization" in words  # whether or not the machine that asks has a GPU
    assert "--enforce-eager" in command("m", dtype="float32", gpus=0, **sizes)


def test_processes_wait_for_each_other_as_long_as_batches_may_take() -> None:
    from tasks.training.process_group import BETWEEN_BATCHES, patience
    from tests.support.recorded import small_experiment

    once, thrice = small_experiment(name="grpo"), small_experiment(name="grpo", max_resample_rounds=2)
    assert patience(once) == timedelta(seconds=once.rollout.batch_seconds) + BETWEEN_BATCHES
    assert patience(thrice) == timedelta(seconds=3 * once.rollout.batch_seconds) + BETWEEN_BATCHES


def test_the_launcher_says_which_process_was_killed_and_leaves_no_file(tmp_path: Path) -> None:
    program, verdict, temporary = tmp_path / "process.py", tmp_path / "verdict", tmp_path / "temporary"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    temporary.mkdir()
    *launcher, _, _, job = launch_command(InfraSettings(trainer_processes=1), program, verdict)
    subprocess.run([*launcher, job], env=os.environ | {"TMPDIR": str(temporary)}, capture_output=True, check=False)
    assert "was killed by SIGKILL" in verdict.read_text()
    assert list(temporary.iterdir()) == []
