"""Tests of launch files, the trainer's launch command, and the supervision of its ranks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from multiprocessing import Pipe, get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import SecretStr, ValidationError

from configs.files import names_in
from configs.infrastructure import InfraSettings, SettingsError, infra_settings
from configs.launch import FOLDER, LaunchError, load_launch
from configs.recipe import load_recipe
from flows.gpu_memory import this_machine
from tasks.inference.engine import EngineError
from tasks.provision import accelerators
from tasks.provision.ipc import TrainerConnection
from tasks.provision.process import ChildProcess, sweep
from tasks.training import (
    forked_launch,
    local_trainer,
    processor,
    rank_watch,
    rollout_worker,
    trainer_main,
    trainer_node,
)
from tasks.training.compute_dtype import compute_dtype
from tasks.training.forked_launch import ends
from tasks.training.launch import HUNG, POLICY_READY, End
from tasks.training.launch import verdict as verdict_of
from tasks.training.local_trainer import launch_command
from tasks.training.messages import Failed, TrainerJob
from tasks.training.rank_errors import note_error, noted_error
from tasks.training.rank_watch import Heartbeats, RankWatch
from tasks.training.rollout_worker import RolloutWorker
from tasks.training.trainer_client import TrainerFailedError, TrainerLostError, TrainerProcess
from tests.support import completion_server
from tests.support.processes import kill_once_begun, run_python
from tests.support.served_endpoint import serving


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_launch_file_sets_the_number_of_processes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_LAUNCH", name)
    monkeypatch.setenv("AGENTGYM_ENVIRONMENT_TOKEN", "shared by the nodes")
    monkeypatch.setattr(local_trainer, "visible_gpus", lambda: ["0"])
    launch = load_launch(name)
    command = launch_command(infra_settings(), "float32", Path("job.json"), Path("verdict"))
    assert command[command.index("--nproc_per_node") + 1] == str(launch.processes)
    assert command[command.index("--nnodes") + 1] == str(launch.nodes)
    assert ("memory" in command) == (launch.nodes == 1)
    monkeypatch.setenv("AGENTGYM_TRAINER_PROCESSES", "3")
    command = launch_command(infra_settings(), "float32", Path("job.json"), Path("verdict"))
    assert command[command.index("--nproc_per_node") + 1] == "3"


@pytest.mark.parametrize(
    ("dtype", "processes"), [("float32", min(2, len(os.sched_getaffinity(0)))), ("bfloat16", 1)]
)
def test_only_float32_trains_with_several_processes_on_a_cpu(
    dtype: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_trainer, "visible_gpus", list)
    command = launch_command(InfraSettings(), dtype, Path("job.json"), Path("verdict"))
    assert command[4] == str(processes)
    assert (
        launch_command(
            InfraSettings(trainer_processes=3), dtype, Path("job.json"), Path("verdict")
        )[4]
        == "3"
    )


@pytest.mark.parametrize(("visible", "has_gpu"), [("1", True), ("", False), ("-1", False)])
def test_only_visible_gpus_count_for_the_start_of_trainer_and_engine_server(
    visible: str, has_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.inference.launch_command import command

    monkeypatch.setattr(accelerators, "installed_gpus", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv(local_trainer.TUNABLES, raising=False)
    assert local_trainer.starts_forks(InfraSettings()) is not has_gpu
    assert (local_trainer.memory_variables("bfloat16") == {}) is has_gpu
    assert local_trainer.default_processes(InfraSettings(), "float32") == (
        1 if has_gpu else min(2, len(os.sched_getaffinity(0)))
    )
    server = command(
        "policy",
        context_length=64,
        max_num_seqs=1,
        dtype="float32",
        gpu_memory_fraction=0.5,
        cpu_cache_gb=1.0,
    )
    assert ("--gpu-memory-utilization" in server) is has_gpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_cpu_computes_in_bfloat16_only_with_instructions_for_it(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    for features in ("", "amx_bf16", "avx512_bf16"):
        (tmp_path / "cpuinfo").write_text(f"flags : fma avx2 {features} amx_tile\n")
        assert compute_dtype(dtype) is (
            torch.bfloat16 if features and dtype == "bfloat16" else torch.float32
        )


def test_a_trainer_without_gpu_keeps_the_memory_of_freed_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_trainer, "visible_gpus", list)
    monkeypatch.setattr(local_trainer, "find_library", lambda _: None)
    monkeypatch.delenv(local_trainer.TUNABLES, raising=False)
    program = (
        "from resource import RUSAGE_SELF, getrusage\n"
        f"for _ in range(8): memory = b'1' * {2**26}; del memory\n"
        "print(getrusage(RUSAGE_SELF).ru_minflt)"
    )

    def page_faults(variables: dict[str, str]) -> int:
        return int(run_python(program, **variables))

    assert page_faults(local_trainer.memory_variables("bfloat16")) < page_faults({}) / 4


def test_a_trainer_without_gpu_loads_an_installed_tcmalloc_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_trainer, "visible_gpus", list)
    # Set-up installs libnuma, but not tcmalloc.
    monkeypatch.setattr(local_trainer, "find_library", {"tcmalloc_minimal": "libnuma.so.1"}.get)
    monkeypatch.delenv(local_trainer.PRELOAD, raising=False)
    program = "print(open('/proc/self/maps').read())"
    assert "libnuma" not in run_python(program)
    assert "libnuma" in run_python(program, **local_trainer.memory_variables("bfloat16"))
    assert local_trainer.memory_variables("float32") == {}
    monkeypatch.setenv(local_trainer.PRELOAD, "libstdc++.so.6")
    assert local_trainer.PRELOAD not in local_trainer.memory_variables("bfloat16")


def test_processes_of_one_machine_without_gpu_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_trainer, "visible_gpus", list)
    command = launch_command(
        InfraSettings(trainer_processes=3), "float32", Path("job.json"), Path("verdict")
    )
    assert command[1:] == [
        "-m",
        "tasks.training.forked_launch",
        "verdict",
        "3",
        str(Path("job.json").absolute()),
    ]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("sharding: fsdp1", {"sharding": "literal_error"}),
        ("nodes: 2\nprocesses: 8", {"": "value_error"}),
        ("distributed_type: FSDP", {"distributed_type": "extra_forbidden"}),
        ("- a", {"": "model_type"}),
        ("a: [", {}),
    ],
)
def test_a_wrong_launch_file_is_refused_with_the_field(
    text: str, codes: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(LaunchError) as refused:
        load_launch(str(tmp_path / "mine.yaml"))
    assert refused.value.codes == codes
    assert str(tmp_path / "mine.yaml") in str(refused.value)


def test_missing_launch_file_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTGYM_LAUNCH", "one-node-fsdp")
    with pytest.raises(SettingsError, match=r"(?s)AGENTGYM_LAUNCH.*'one-node-fsdp2'"):
        infra_settings()


@pytest.mark.parametrize("is_first", [True, False])
def test_the_first_of_several_nodes_hosts_the_rendezvous_and_sorts_first(is_first: bool) -> None:
    settings = InfraSettings(
        launch="several-nodes-fsdp2", environment_token="shared", trainer_start_seconds=70
    )
    command = launch_command(
        settings, "float32", Path("job.json"), Path("verdict"), is_first=is_first
    )

    def value(option: str) -> str:
        return command[command.index(option) + 1]

    assert value("--rdzv_endpoint") == "10.0.0.1:29500"
    assert value("--rdzv_conf") == f"is_host={int(is_first)},join_timeout=70"
    assert (value("--local_addr") == "10.0.0.1") == is_first
    assert is_first or value("--local_addr") > "z"


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({}, {"environment_token"}),
        ({"engine_servers": 1}, {"environment_token", "engine_token"}),
        ({"environment_token": "a", "engine_urls": "http://b:1"}, {"engine_token"}),
        ({"environment_token": "a", "environment_backend": "container"}, {"environment_backend"}),
    ],
)
def test_several_nodes_require_servers_that_all_can_reach(
    fields: dict[str, Any], missing: set[str]
) -> None:
    with pytest.raises(ValidationError) as refused:
        InfraSettings(launch="several-nodes-fsdp2", **fields)
    (error,) = refused.value.errors()
    names = {"environment_token", "engine_token", "environment_backend"}
    assert {name for name in names if name in error["msg"]} == missing


def test_node_joins_only_with_a_launch_file_for_several_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTGYM_LAUNCH", "one-node-fsdp2")
    monkeypatch.setattr(sys, "argv", ["trainer_node"])
    with pytest.raises(SettingsError, match=r"AGENTGYM_LAUNCH.*one-node-fsdp2"):
        trainer_node.main()


def test_relative_runs_folder_is_refused_on_a_ray_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_RAY_ADDRESS", "auto")
    monkeypatch.setenv("AGENTGYM_RUNS", "runs")
    with pytest.raises(SettingsError, match=r"runs \(runs\).*ray_address"):
        infra_settings()


@pytest.mark.parametrize(
    ("name", "value"), [("ENVIRONMENT_BACKEND", "container"), ("ENGINE_GPUS", "1")]
)
def test_placement_settings_are_refused_with_ray(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_RAY_ADDRESS", "auto")
    monkeypatch.setenv("AGENTGYM_ENGINE_SERVERS", "1")
    monkeypatch.setenv(f"AGENTGYM_{name}", value)
    with pytest.raises(SettingsError, match=f"{name.lower()}.*ray_address"):
        infra_settings()


def test_server_with_two_gpus_uses_tensor_parallelism() -> None:
    from tasks.inference.launch_command import command

    sizes = {"context_length": 64, "max_num_seqs": 2, "gpu_memory_fraction": 0.5, "cpu_cache_gb": 1}
    assert "--tensor-parallel-size" not in command("m", dtype="float32", gpus=1, **sizes)
    words = command("m", dtype="float32", gpus=2, **sizes)
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert "--gpu-memory-utilization" in words  # even if this machine has no GPU
    assert "--enforce-eager" in command("m", dtype="float32", gpus=0, **sizes)


def test_collective_timeout_covers_the_batch_deadline() -> None:
    from tasks.training.process_group import BETWEEN_BATCHES, patience
    from tests.support.recorded import small_experiment

    once, thrice = (
        small_experiment(name="grpo"),
        small_experiment(name="grpo", max_resample_rounds=2),
    )
    assert patience(once) == timedelta(seconds=once.rollout.batch_seconds) + BETWEEN_BATCHES
    assert patience(thrice) == timedelta(seconds=3 * once.rollout.batch_seconds) + BETWEEN_BATCHES


def test_launcher_names_the_killed_process_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, verdict, temporary = (
        tmp_path / "process.py",
        tmp_path / "verdict",
        tmp_path / "temporary",
    )
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    temporary.mkdir()
    monkeypatch.setattr(local_trainer, "visible_gpus", lambda: ["0"])
    *launcher, _, _, job = launch_command(
        InfraSettings(trainer_processes=1), "float32", program, verdict
    )
    subprocess.run(
        [*launcher, job],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        check=False,
    )
    assert "SIGKILL" in verdict.read_text()
    assert list(temporary.iterdir()) == []


def forks(*bodies: Callable[[], object]) -> list[End]:
    """Run each function in a forked process, and return how they ended, the first end first."""
    processes = [get_context("fork").Process(target=body) for body in bodies]
    for process in processes:
        process.start()
    return ends(processes)


def test_successful_forks_are_awaited() -> None:
    found = forks(lambda: time.sleep(0.3), lambda: None)
    assert {(end.rank, end.status) for end in found} == {(1, 0), (0, 0)}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"rank 1 .*SIGKILL"),
        (lambda: sys.exit(3), r"rank 1 .*status 3"),
        (lambda: os._exit(7), r"rank 1 .*status 7"),
    ],
)
def test_failed_fork_ends_the_others_and_is_named(fault: Callable[[], object], words: str) -> None:
    found = forks(lambda: time.sleep(600), fault)
    assert {end.rank: end.status for end in found}[0] == -signal.SIGTERM
    assert re.match(words, verdict_of(found, {}))


def test_stopped_fork_is_killed_and_named_and_the_others_write_their_stacks(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def waits_for_rank_1() -> None:
        Heartbeats(3600.0)
        time.sleep(600)

    def stops() -> None:
        Heartbeats(3600.0)
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)

    monkeypatch.setattr(rank_watch, "STOPPED_S", 1.0)
    with RankWatch() as watch:
        found = forks(waits_for_rank_1, stops)
    assert (found[0].rank, found[0].status) == (1, -signal.SIGKILL)
    assert set(watch.hung) == {found[0].pid}
    assert HUNG in verdict_of(found, watch.hung)
    stacks = capfd.readouterr().err
    assert waits_for_rank_1.__name__ in stacks
    assert f"in {stops.__name__}" in stacks


def test_only_a_rank_whose_part_of_the_update_exceeds_its_limit_is_hung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rests() -> None:
        heartbeats = Heartbeats(1.0)
        with heartbeats.part():
            for _ in range(8):  # micro-batches
                time.sleep(0.25)
                heartbeats.beat()
        time.sleep(600)

    def hangs() -> None:
        heartbeats = Heartbeats(1.0)
        with heartbeats.part():
            heartbeats.beat()
            time.sleep(600)

    monkeypatch.setattr(rank_watch, "POLL_S", 0.25)
    with RankWatch() as watch:
        found = forks(rests, hangs)
    assert [end.pid for end in found if end.pid in watch.hung] == [found[0].pid]
    assert (found[0].rank, found[0].status) == (1, -signal.SIGKILL)


def test_killed_fork_is_named_before_forks_that_failed_because_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forked_launch, "TOGETHER_SECONDS", 300.0)
    found = forks(
        lambda: sys.exit(1), lambda: (time.sleep(0.4), os.kill(os.getpid(), signal.SIGKILL))
    )
    assert [end.rank for end in found] == [0, 1]
    assert "rank 1" in verdict_of(found, {})


def test_forks_start_when_the_policy_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads_policy(rank: int, size: int, job: Path) -> None:
        assert job.with_name(POLICY_READY).exists()
        job.with_name(f"loaded-{rank}").touch()

    job = tmp_path / "job.json"
    monkeypatch.setattr(sys, "argv", ["forked_launch", str(tmp_path / "verdict"), "2", str(job)])
    monkeypatch.setattr(trainer_main, "read_job", lambda file: file)
    monkeypatch.setattr(trainer_main, "import_all", lambda job: job.with_name("imported").touch())
    monkeypatch.setattr(forked_launch, "run_rank", loads_policy)
    launcher = get_context("fork").Process(target=forked_launch.main)
    launcher.start()
    while not (tmp_path / "imported").exists():
        time.sleep(0.01)
    (tmp_path / POLICY_READY).touch()
    launcher.join()
    assert launcher.exitcode == 0
    assert {file.name for file in tmp_path.glob("loaded-*")} == {"loaded-0", "loaded-1"}


@pytest.mark.parametrize(
    ("fault", "names_fields"),
    [(torch.OutOfMemoryError("CUDA out of memory"), True), (OSError("the disk is full"), False)],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_error_of_a_rank_for_want_of_memory_names_the_fields_that_save_memory(
    rank: int,
    fault: Exception,
    names_fields: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise fault

    sent = list[Any]()
    flow = SimpleNamespace(send=sent.append)  # only rank 0 has this connection
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr(trainer_main, "die_with_parent", lambda: None)
    monkeypatch.setattr(trainer_main, "FlowConnection", lambda _: flow)
    monkeypatch.setattr(trainer_main, "TrainerMain", fails)
    job: Any = SimpleNamespace(socket=tmp_path / "socket", folder=tmp_path)
    with pytest.raises(SystemExit):
        trainer_main.run(job)
    kind = type(fault).__name__
    if rank == 0:
        ((reported, message),) = [(each.kind, each.message) for each in sent]
        assert (reported, noted_error(tmp_path)) == (kind, "")
    else:
        message = noted_error(tmp_path)
        assert (f"rank 1: {kind}" in message, sent) == (True, [])
    assert ("algorithm.micro_batch_tokens" in message) == names_fields
    assert ("policy.gradient_checkpointing" in message) == names_fields


@pytest.mark.parametrize(
    ("noted", "kind"), [("OSError", TrainerFailedError), ("RuntimeError", TrainerLostError)]
)
def test_trainer_on_several_nodes_restarts_only_if_no_rank_has_an_error_of_its_own(
    noted: str, kind: type[Exception], tmp_path: Path
) -> None:
    launch = tmp_path / "launch.yaml"
    launch.write_text("nodes: 2\nprocesses: 1\nfirst_node: 127.0.0.2\nport: 29500\n")
    job = TrainerJob.model_construct(
        experiment=load_recipe("textcraft"), folder=tmp_path, engine_urls=[], engine_weights=""
    )
    settings = InfraSettings(launch=str(launch), environment_token=SecretStr("shared"))
    trainer = TrainerProcess(job, settings, lambda: None)
    trainer._process = ChildProcess("trainer", ["true"], state_dir=tmp_path / "state")
    trainer._process.start()
    flow, rank = Pipe()
    trainer._connection = TrainerConnection(flow)
    note_error(tmp_path, 1, noted, "fault of rank 1")
    rank.send(Failed("RuntimeError", "connection closed by peer"))
    with pytest.raises(TrainerFailedError) as error:
        list(trainer.train(1))
    assert error.type is kind


def test_a_sweep_keeps_the_trainer_of_a_run_whose_former_flow_was_killed(tmp_path: Path) -> None:
    """Continue a run with its log, then sweep as any other command does."""
    log, sleep = tmp_path / "trainer.log", ["sleep", "600"]
    code = (
        "import sys, time; from pathlib import Path; from tasks.provision.process import *;"
        f"ChildProcess('trainer', {sleep}, log_path=Path(sys.argv[1])).start();"
        "print('begun', flush=True); time.sleep(600)"
    )
    kill_once_begun(code, str(log))
    job = TrainerJob.model_construct(
        experiment=load_recipe("textcraft"), folder=tmp_path, engine_urls=[], engine_weights=""
    )
    trainer = TrainerProcess(job, InfraSettings(trainer_processes=1), lambda: None)
    trainer._process = ChildProcess("trainer", sleep, log_path=log)
    with trainer:
        sweep()
        assert trainer._process.alive()


def test_vllm_servers_with_a_smaller_context_than_the_recipe_are_refused(tmp_path: Path) -> None:
    tokenizer: Any = None
    with serving(completion_server.application()) as port:  # its context has 4096 tokens
        job = TrainerJob.model_construct(
            experiment=load_recipe("textcraft", {"rollout.trajectory_tokens": 4097}),
            engine_urls=[f"http://127.0.0.1:{port}"],
            engine_weights_folder=tmp_path,
        )
        with pytest.raises(EngineError, match=r"rollout\.trajectory_tokens"):
            RolloutWorker(job, tokenizer, lambda *_: None, Heartbeats(1.0))
    assert not any(tmp_path.iterdir())


def test_a_rank_that_hangs_while_it_loads_the_engine_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loads() -> None:
        recipe = SimpleNamespace(rollout=SimpleNamespace(temperature=1.0, update_in_flight=False))
        worker: Any = SimpleNamespace(
            _loaded_step=None,
            _heartbeats=Heartbeats(0.5),
            _experiment=recipe,
            _chat_formats=[SimpleNamespace(prompt=lambda _: [1])],
            _collector=SimpleNamespace(paused=lambda finish: nullcontext()),
            _load=lambda *_: time.sleep(600),
        )
        RolloutWorker.load_weights(worker, 1, worker)

    monkeypatch.setattr(rank_watch, "POLL_S", 0.25)
    monkeypatch.setattr(rollout_worker, "WEIGHTS_S", 1.0)
    with RankWatch() as watch:
        [end] = forks(loads)
    assert (end.status, list(watch.hung)) == (-signal.SIGKILL, [end.pid])


@pytest.mark.parametrize(
    ("url", "weights", "on_loopback"),
    [
        ("http://127.0.0.1:8000", "nccl", True),
        ("http://10.0.0.7:8000", "folder", True),
        ("http://10.0.0.7:8000", "nccl", False),
        ("file:///runs/server", "nccl", False),
    ],
)
def test_nccl_uses_the_network_only_to_send_weights_to_other_machines(
    url: str, weights: str, on_loopback: bool, tmp_path: Path
) -> None:
    job = TrainerJob.model_construct(
        experiment=load_recipe("textcraft"),
        folder=tmp_path,
        engine_urls=[url],
        engine_weights=weights,
    )
    trainer = TrainerProcess(job, InfraSettings(trainer_processes=1), lambda: None)
    assert ("NCCL_SOCKET_IFNAME" in trainer._process._environment) == on_loopback
    assert trainer._process._environment["GLOO_SOCKET_IFNAME"] == "lo"


def test_the_memory_of_hidden_gpus_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        "case \"$*\" in *--id=1*) ;; *) echo '4096, NVIDIA T400';; esac\n"
        "echo '81559, NVIDIA H100 80GB HBM3'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(accelerators, "installed_gpus", lambda: 2)
    machine = this_machine(InfraSettings(trainer_processes=1))
    assert machine is not None
    assert (machine.gpu, machine.gpu_memory > 80) == ("H100", True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert this_machine(InfraSettings(trainer_processes=1)) is None
