"""Tests of forked trainer processes beside an engine that changes their environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.counting_servers import ROOT
from tests.support.processes import run_python

FORKED = """
import os
import sys
from multiprocessing import get_context
from pathlib import Path

from configs.recipe import load_recipe
from tasks.training import forked_launch, trainer_main
from tasks.training.process_group import STORE, join, rendezvous_memory
from tasks.training.trl_config import policy_gradient_config


class Job:
    folder = Path(sys.argv[1])


def run(job):
    experiment = load_recipe("textcraft", {})
    join(experiment, job.folder)
    os.environ["LOCAL_WORLD_SIZE"] = "1"  # vLLM's CPU engine does this
    policy_gradient_config(experiment, job.folder)


trainer_main.run, trainer_main.exit_at_once = run, lambda: os._exit(0)
os.environ[STORE] = rendezvous_memory()
ranks = [get_context("fork").Process(target=forked_launch.run_rank, args=(rank, 2, Job)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
sys.exit(max(abs(rank.exitcode) for rank in ranks))
"""


@pytest.mark.slow
def test_forked_ranks_keep_their_world_size_despite_vllm(tmp_path: Path) -> None:
    run_python(
        FORKED,
        str(tmp_path),
        PYTHONPATH=str(ROOT),
        CUDA_VISIBLE_DEVICES="",
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
