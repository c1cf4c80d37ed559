"""Tests of chains of commands that run in parallel, and of the GPUs of each slot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from configs.infrastructure import InfraSettings, infra_settings
from configs.recipe import RecipeError
from environments import cgroup
from flows.parallel_commands import (
    Command,
    gpu_slots,
    max_parallel_commands,
    run_chains,
    trainer_processes,
)
from tests.support.processes import kill_once_begun


def chain(name: str, logs: Path, *modules: list[str]) -> Iterator[Command]:
    for number, words in enumerate(modules):
        yield Command(f"{name}{number}", words, logs / f"{name}{number}.log")


def test_a_failed_command_ends_its_chain_and_is_reported_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    fine, broken = ["timeit", "-n", "1", "pass"], ["json.tool", str(tmp_path / "nowhere.json")]
    chains = [
        chain("a", tmp_path, fine, broken, fine),
        chain("b", tmp_path, fine, fine),
        chain("c", tmp_path),
        chain("d", tmp_path, fine),
    ]
    messages: list[str] = []
    failures = run_chains(chains, 2, [], {}, messages.append)
    assert [failure.partition(" ")[0] for failure in failures] == ["a1"]
    assert "nowhere.json" in failures[0]
    lines = [line for line in messages if line not in failures]
    begun = [line.partition(",")[0] for line in lines]
    assert sorted(begun) == ["a0", "a1", "b0", "b1", "d0"]
    assert str(tmp_path / "b0.log") in lines[begun.index("b0")]
    assert [name for name in begun if name.startswith("b")] == ["b0", "b1"]


def see_gpus(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate 16 GPUs, of which CUDA_VISIBLE_DEVICES makes only `names` visible."""
    monkeypatch.setattr("tasks.provision.accelerators.installed_gpus", lambda: 16)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)


def test_slots_have_the_gpus_of_a_run_and_commands_get_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    see_gpus("4,6,7,9,12", monkeypatch)
    slots = gpu_slots(InfraSettings(trainer_processes=2))
    shows = [
        "timeit",
        "-n",
        "1",
        "-r",
        "1",
        "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['GIVEN'])",
    ]
    chains = [chain(name, tmp_path, shows) for name in "ab"]
    run_chains(chains, 2, slots, {"GIVEN": "x"}, lambda _: None)
    assert {(tmp_path / f"{name}0.log").read_text().splitlines()[0] for name in "ab"} == {
        "4,6 x",
        "7,9 x",
    }


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, ["4", "6", "7", "9"]),
        ({"trainer_processes": 2}, ["4,6", "7,9"]),
        ({"engine_servers": 1}, ["4,6", "7,9"]),
        ({"trainer_processes": 2, "engine_servers": 1}, ["4,6,7"]),
        ({"engine_servers": 1, "engine_gpus": ["9"]}, ["4,6,7,9"]),
        ({"engine_urls": ["http://a:1"]}, ["4", "6", "7", "9"]),
        ({"launch": "{processes: 2}"}, ["4,6", "7,9"]),
        ({"launch": "{processes: 2}", "trainer_processes": 4}, ["4,6,7,9"]),
    ],
)
def test_a_slot_has_a_gpu_for_each_trainer_process_and_vllm_server(
    settings: dict[str, Any], slots: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.parallel_commands.GIB_EACH", 1e-3)
    see_gpus("4,6,7,9", monkeypatch)
    if "launch" in settings:
        file = tmp_path / "launch.yaml"
        file.write_text(settings["launch"])
        settings = settings | {"launch": str(file)}
    infrastructure = InfraSettings(**settings)
    assert gpu_slots(infrastructure) == slots
    at_once = (
        1 if infrastructure.engine_urls else len(slots)
    )  # parallel runs would overwrite the servers' weights
    assert max_parallel_commands(infrastructure, {"bfloat16"}) == at_once


def test_study_whose_runs_need_more_gpus_than_available_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see_gpus("4,6", monkeypatch)
    for settings, field in (
        (InfraSettings(trainer_processes=3), "AGENTGYM_TRAINER_PROCESSES"),
        (InfraSettings(engine_servers=2), "AGENTGYM_ENGINE_SERVERS"),
    ):
        with pytest.raises(RecipeError, match=field):
            max_parallel_commands(settings, {"bfloat16"})


def test_runs_on_several_nodes_run_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    see_gpus(",".join(map(str, range(16))), monkeypatch)
    infrastructure = InfraSettings(
        launch="several-nodes-fsdp2", environment_token=SecretStr("x"), study_runs_at_once=2
    )
    assert max_parallel_commands(infrastructure, {"bfloat16"}) == 1
    assert gpu_slots(infrastructure) == [",".join(map(str, range(16)))]


def test_runs_that_share_vllm_servers_run_one_at_a_time() -> None:
    infrastructure = InfraSettings(
        engine_urls=["http://a:1"], engine_token=SecretStr("x"), study_runs_at_once=2
    )
    assert max_parallel_commands(infrastructure, {"float32"}) == 1


def test_the_trainer_processes_of_a_study_come_from_the_settings_and_the_launch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trainer_processes(infra_settings()) == 1
    (tmp_path / "two.yaml").write_text("{processes: 2}")
    monkeypatch.setenv("AGENTGYM_LAUNCH", str(tmp_path / "two.yaml"))
    assert trainer_processes(infra_settings()) == 2
    (tmp_path / ".env").write_text("AGENTGYM_TRAINER_PROCESSES=3\n")
    assert trainer_processes(infra_settings()) == 3


def test_the_number_of_slots_is_the_setting_or_one_per_gpu_or_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "FOLDER", tmp_path)
    small, large = {"float32"}, {"float32", "bfloat16"}
    monkeypatch.setattr("flows.parallel_commands.GIB_EACH", 1e-3)
    see_gpus("0,1,2", monkeypatch)
    assert max_parallel_commands(InfraSettings(), large) == 3
    see_gpus("", monkeypatch)
    assert max_parallel_commands(InfraSettings(), small) == len(os.sched_getaffinity(0))
    assert max_parallel_commands(InfraSettings(trainer_processes=10**6), small) == 1
    assert max_parallel_commands(InfraSettings(), large) == 1  # one run takes all cores
    assert max_parallel_commands(InfraSettings(study_runs_at_once=7), large) == 7
    monkeypatch.setattr("flows.parallel_commands.GIB_EACH", 1e9)
    assert (
        max_parallel_commands(InfraSettings(), small) == 1
    )  # one run starts even if memory is short


def test_the_limits_of_a_container_limit_the_number_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "FOLDER", tmp_path)
    monkeypatch.setattr("flows.parallel_commands.GIB_EACH", 1e-3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    see_gpus("", monkeypatch)

    def runs() -> int:
        return max_parallel_commands(InfraSettings(), {"float32"})

    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert runs() == 64
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert runs() == 2
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert runs() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text(f"{2**22}\n")
    assert runs() == 3


def test_processes_of_a_killed_owner_are_ended_before_a_new_command_starts(tmp_path: Path) -> None:
    """Let a second command sweep while it writes to the log of a killed owner's command.

    A sweep ends the processes that hold the log of a process without an owner. It must not end the
    second command.
    """
    code = (
        "import sys; from pathlib import Path; from flows.parallel_commands import Command, "
        "run_chains;"
        "log = Path(sys.argv[1]); words = ['timeit', '-n', '1', 'import time; time.sleep(300)'];"
        "run_chains([iter([Command('first', words, log)])], 1, [], {}, lambda _: print('begun', "
        "flush=True))"
    )
    log = tmp_path / "same.log"
    kill_once_begun(code, str(log))
    sweeps = [
        "timeit",
        "-n",
        "1",
        "-r",
        "1",
        "from tasks.provision.process import sweep; sweep(); print('alive')",
    ]
    failures = run_chains([iter([Command("second", sweeps, log)])], 1, [], {}, lambda _: None)
    assert failures == []
    assert "alive" in log.read_text()
