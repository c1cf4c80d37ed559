"""Tests of several trainer ranks, replicated or sharded: updates and resumed checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.provision.local import ON_LOOPBACK, free_port
from tasks.training.lora import computed_weights
from tests.support.counting_servers import ROOT
from tests.support.recorded import RecordedBatches, train, trainer_of
from tests.support.update_process import (
    CONTEXT,
    GOING_ON,
    SETTINGS,
    SOME,
    STEPS,
    experiment_of,
)

pytestmark = pytest.mark.slow

Launch = Callable[[int, str], Path]
MODES = {1: ["none"], 2: ["none", "fsdp2", CONTEXT], 4: ["hsdp", CONTEXT, "fsdp2"]}
RESUMED_RANKS = (1, 4)
SETUPS = {
    "two": (2, "none"),
    "two sharded": (2, "fsdp2"),
    "four sharded on two nodes": (4, "fsdp2"),
    "four sharded within two nodes": (4, "hsdp"),
    "two that compute rows together": (2, CONTEXT),
    "two of four that compute rows together": (4, CONTEXT),
}


@pytest.fixture(scope="module")
def launched(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Return a function that runs tests.support.update_process and returns the output folder.

    Every launch trains on the same batches. Four ranks run on two nodes. Two ranks make the updates
    of all modes in one launch and also resume the checkpoints of one and of four ranks, because the
    start takes most of the time.
    """

    @cache
    def launch(processes: int) -> Path:
        others = (
            [str(launch(number) / MODES[number][-1]) for number in RESUMED_RANKS]
            if processes == 2
            else []
        )
        folder = tmp_path_factory.mktemp("processes") / f"{processes}"
        folder.mkdir()
        module = [
            "-m",
            "tests.support.update_process",
            policy,
            str(folder),
            *MODES[processes],
            *others,
        ]
        environment = {
            **os.environ,
            **ON_LOOPBACK,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "",
        }
        if processes == 4:
            node = ["--nnodes", "2", "--nproc_per_node", str(processes // 2)]
            node += ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
            places = [[*node, "--node_rank", "0"], [*node, "--node_rank", "1"]]
        else:
            places = [
                [
                    "--nproc_per_node",
                    str(processes),
                    "--rdzv_backend",
                    "memory",
                    "--rdzv_endpoint",
                    "127.0.0.1",
                ]
            ]
        started = []
        for number, place in enumerate(places):
            command = [
                sys.executable,
                "-m",
                "tasks.training.launch",
                str(folder / f"verdict-{number}"),
                *place,
                *module,
            ]
            log = folder / f"log-{number}"
            started.append(
                (
                    subprocess.Popen(
                        command,
                        env=environment,
                        cwd=ROOT,
                        stdout=log.open("wb"),
                        stderr=subprocess.STDOUT,
                    ),
                    log,
                )
            )
        try:
            for process, log in started:
                assert process.wait(1500) == 0, log.read_text(errors="replace")[-4000:]
        finally:
            for process, _ in started:
                process.terminate()
        return folder

    return lambda processes, how: launch(processes) / how


@pytest.mark.parametrize(
    ("how", "algorithm"),
    [(how, algorithm) for how, (_, way) in SETUPS.items() for algorithm in SOME.get(way, SETTINGS)],
)
def test_several_ranks_make_the_same_updates_as_one(
    how: str, algorithm: str, policy: str, launched: Launch
) -> None:
    one, several = (
        torch.load(folder / f"{algorithm}.pt", weights_only=True)
        for folder in (launched(1, "none"), launched(*SETUPS[how]))
    )
    for ours, right in zip(several["metrics"], one["metrics"], strict=True):
        assert ours == pytest.approx(right, rel=2e-3, abs=1e-6)
    start = {f"policy.{name}": p for name, p in _model(policy).named_parameters()}
    start |= {name.replace("policy.model.", "critic.backbone."): p for name, p in start.items()}
    for model in {name.split(".")[0] for name in one["weights"]}:
        names = [name for name in one["weights"] if name.startswith(model)]
        moved = torch.cat([(one["weights"][name] - start.get(name, 0)).flatten() for name in names])
        apart = torch.cat(
            [(several["weights"][name] - one["weights"][name]).flatten() for name in names]
        )
        # All weights are compared together, because Adam makes full steps even where the gradient
        # is only a rounding error, as in the biases of the keys.
        assert apart.norm().item() <= 0.01 * moved.norm().item(), model


def test_ranks_of_one_machine_use_loopback_and_the_batch_timeout(launched: Launch) -> None:
    found = json.loads((launched(2, "fsdp2") / "found.json").read_text())
    assert found["outside"] == []
    assert (
        found["patience"] == 4 * 3600 + 3600
    )  # rollout.batch_seconds plus one hour between two batches


@pytest.mark.parametrize(("how", "share"), [("fsdp2", 1 / 4), ("hsdp", 1 / 2)])
def test_weights_are_sharded_over_all_machines_or_within_each(
    how: str, share: float, launched: Launch
) -> None:
    found = json.loads((launched(4, how) / "found.json").read_text())
    assert found["share"] == pytest.approx(share, rel=0.02)


def test_sharded_gradients_accumulate_in_float32(launched: Launch) -> None:
    assert (
        json.loads((launched(2, "fsdp2") / "found.json").read_text())["gradient_error"] < 1e-5
    )  # it would be 4e-3 in bfloat16


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_sharded_checkpoint_has_full_weights_in_hugging_face_format(
    algorithm: str, launched: Launch
) -> None:
    folder = launched(2, "fsdp2")
    weights = torch.load(folder / f"{algorithm}.pt", weights_only=True)["weights"]
    stored = dict(
        _model(folder / algorithm / "checkpoints" / f"step-{STEPS:06d}").named_parameters()
    )
    for name, parameter in stored.items():
        assert torch.equal(parameter, weights[f"policy.{name}"]), name


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [("ppo", "two sharded"), ("ppo", "four sharded on two nodes"), ("grpo", "two sharded")],
)
def test_one_rank_resumes_a_sharded_checkpoint(
    algorithm: str, how: str, policy: str, launched: Launch, tmp_path: Path
) -> None:
    undisturbed, resumed = (
        _resume(folder, algorithm, policy, tmp_path)
        for folder in (launched(1, "none"), launched(*SETUPS[how]))
    )
    before = dict(
        _model(
            launched(1, "none") / algorithm / "checkpoints" / f"step-{STEPS:06d}"
        ).named_parameters()
    )
    moved = torch.cat(
        [(p - before[name]).flatten() for name, p in undisturbed.model.named_parameters()]
    )
    apart = torch.cat(
        [
            (p - q).flatten()
            for p, q in zip(undisturbed.model.parameters(), resumed.model.parameters(), strict=True)
        ]
    )
    assert apart.norm().item() <= 0.03 * moved.norm().item()
    if algorithm == "ppo":
        states = [
            trainer.critic.optimiser.state_dict()["state"] for trainer in (undisturbed, resumed)
        ]
        assert {float(state["step"]) for state in states[1].values()} == {2.0 * (STEPS + 1)}
        for ours, right in zip(states[1].values(), states[0].values(), strict=True):
            assert torch.allclose(ours["exp_avg_sq"], right["exp_avg_sq"], rtol=1e-2, atol=1e-9)


@pytest.mark.parametrize("algorithm", GOING_ON)
@pytest.mark.parametrize("processes", RESUMED_RANKS)
def test_two_sharded_ranks_resume_checkpoints_of_one_and_four(
    processes: int, algorithm: str, policy: str, launched: Launch, tmp_path: Path
) -> None:
    resumed = torch.load(
        launched(2, f"gone on with {processes}") / f"{algorithm}.pt", weights_only=True
    )
    undisturbed = dict(
        computed_weights(_resume(launched(1, "none"), algorithm, policy, tmp_path).model)
    )
    before = dict(
        _model(
            launched(1, "none") / algorithm / "checkpoints" / f"step-{STEPS:06d}"
        ).named_parameters()
    )
    moved = torch.cat([(undisturbed[name] - p).flatten() for name, p in before.items()])
    apart = torch.cat([(undisturbed[name] - resumed[name]).flatten() for name in before])
    assert apart.norm().item() <= 0.03 * moved.norm().item()


def _resume(made: Path, algorithm: str, policy: str, folder: Path) -> Any:
    """Resume a checkpoint in one process, train one more step, and return the trainer."""
    trainer = trainer_of(
        experiment_of(algorithm),
        policy,
        folder,
        made / algorithm / "checkpoints" / f"step-{STEPS:06d}",
    )
    train(trainer, RecordedBatches(policy), STEPS + 1, STEPS)
    return trainer


def _model(folder: str | Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
