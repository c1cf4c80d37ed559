"""Build the starter policy, for machines without a GPU and without a model hub.

It is built from scratch by behaviour cloning of the expert's episodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from prefect import flow

from configs.experiment import Policy
from tasks.provision.errors import ProvisionError
from tasks.provision.process import ChildProcess, importing
from tasks.starter.starter_policy import find_starter_policy, starter_command, starter_name


@flow(
    name="starter-policy",
    flow_run_name="starter policy for {environment}, seed {seed}",
    validate_parameters=False,
)
def starter_policy(
    policy: Policy, environment: str, seed: int, folder: Path, show: Callable[[str], None]
) -> str:
    """Build the starter policy in a separate process, or return the cached one.

    Args:
        policy: The recipe's policy: size, demonstrations and action format.
        environment: The world whose expert demonstrates.
        seed: Seed of weights and demonstrations.
        folder: Where starter policies are kept.
        show: Called twice a second with the progress of the build.

    Returns:
        The folder of the policy.

    Raises:
        ProvisionError: The build failed. The message holds the end of its log.
    """
    if found := find_starter_policy(policy, environment, seed, folder):
        return str(found.path)
    log = folder / f"{starter_name(policy, environment, seed)}.log"
    log.unlink(missing_ok=True)
    process = ChildProcess(
        "starter-policy",
        starter_command(policy, environment, seed, folder),
        environment=importing({"COLUMNS": "60"}),
        log_path=log,
    )
    process.start()
    try:
        while process.alive():
            if line := process.log_tail(1).rpartition("\r")[2].strip():
                show(line)
            time.sleep(0.5)
    finally:
        process.end()
    if (
        process.exit_status
        or (found := find_starter_policy(policy, environment, seed, folder)) is None
    ):
        raise ProvisionError(
            "The starter policy could not be built. Last lines of "
            f"{process.log_path}:\n{process.log_tail()}"
        )
    return str(found.path)
