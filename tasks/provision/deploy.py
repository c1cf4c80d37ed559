"""Register the deployments of prefect.yaml. Paused deployments stay paused.

PREFECT_API_URL=... PREFECT_API_AUTH_STRING=user:password python -m tasks.provision.deploy
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.provision.prefect_api import PrefectApi


@contextmanager
def keeping_pauses(api: PrefectApi) -> Iterator[None]:
    """Pause again what `prefect deploy` resumes: it sets each deployment without `paused` to False.

    A person paused them, or the automation for collapsed runs.
    """
    found = api.ask("deployments/filter", {"limit": 200})
    try:
        yield
    finally:
        for deployment in found:
            if deployment["paused"]:
                api.ask(f"deployments/{deployment['id']}/pause_deployment", {})


if __name__ == "__main__":
    with keeping_pauses(
        PrefectApi(os.environ["PREFECT_API_URL"], os.environ.get("PREFECT_API_AUTH_STRING", ""))
    ):
        deployed = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        )
    sys.exit(deployed.returncode)
