"""Run this machine's part of a trainer on several nodes, for one run after the other.

    python -m tasks.training.trainer_node

Start it on every node of the launch file but the first, with the settings of the flow on the first.
It joins the trainer of each run. If the trainer restarts, it joins again. It ends on a signal.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import time
from contextlib import suppress
from pathlib import Path

from configs.infrastructure import SettingsError, infra_settings
from configs.launch import Launch
from tasks.provision.process import ChildProcess, importing, sweep
from tasks.training.local_trainer import (
    launch_command,
    nodes_job,
    trainer_launch,
    trainer_variables,
)

POLL_S = 1.0


def main() -> None:
    """Join the trainers of the launch file's runs until this process is ended.

    Raises:
        SettingsError: The launch file has one node.
    """
    argparse.ArgumentParser(
        prog="python -m tasks.training.trainer_node",
        description="Run this machine's part of a trainer on several nodes.",
        epilog="example: AGENTGYM_LAUNCH=/shared/launch.yaml python -m tasks.training.trainer_node",
    ).parse_args()
    infrastructure = infra_settings()
    launch = trainer_launch(infrastructure)
    if launch.nodes == 1:
        raise SettingsError(
            f"AGENTGYM_LAUNCH is {infrastructure.launch}, which has one node; name the launch file "
            "of the run"
        )
    sweep()
    command = launch_command(
        infrastructure, "float32", nodes_job(infrastructure), Path(os.devnull), is_first=False
    )
    log = infrastructure.runs / f"trainer-{platform.node()}.log"
    print(f"Waiting for a run on {launch.first_node}:{launch.port}. Log: {log}", flush=True)
    while True:
        if _trainer_waits(launch):
            part = ChildProcess(
                "trainer", command, environment=importing(trainer_variables()), log_path=log
            )
            part.start()
            print("Joined a trainer", flush=True)
            print(f"The trainer ended with status {part.wait()}", flush=True)
        time.sleep(POLL_S)


def _trainer_waits(launch: Launch) -> bool:
    """Return whether the launcher on the first node accepts connections."""
    with suppress(OSError):
        socket.create_connection((launch.first_node, launch.port or 0), POLL_S).close()
        return True
    return False


if __name__ == "__main__":
    main()
