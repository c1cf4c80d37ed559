"""Set up a Prefect server: the work pool, and the automations of automations.yaml.

PREFECT_API_URL=... PREFECT_API_AUTH_STRING=user:password python -m tasks.provision.prefect_set_up
"""

from __future__ import annotations

import json
import os
import urllib.error
from pathlib import Path
from typing import Any

import yaml

from tasks.provision.errors import ProvisionError
from tasks.provision.prefect_api import PrefectApi

POOL_TEMPLATE = Path(__file__).with_name("work_pool.json")
"""The worker's command. Runs and deployments can change neither command, environment nor folder."""
AUTOMATIONS = Path(__file__).resolve().parents[2] / "automations.yaml"
CONFLICT = 409


def set_up(api: PrefectApi, pool: str) -> None:
    """Create the work pool and automations, or update existing ones to their current form.

    Raises:
        ProvisionError: The server refused.
    """
    try:
        template = {"base_job_template": json.loads(POOL_TEMPLATE.read_text(encoding="utf-8"))}
        try:
            api.ask("work_pools/", {"name": pool, "type": "process", **template})
        except urllib.error.HTTPError as refused:
            if refused.code != CONFLICT:
                raise
            api.ask(f"work_pools/{pool}", template, "PATCH")
        _make_automations(api)
    except urllib.error.HTTPError as refused:
        reason = refused.read().decode(errors="replace")
        raise ProvisionError(
            f"the Prefect server rejected {refused.url}: {refused} {reason}"
        ) from None


def _make_automations(api: PrefectApi) -> None:
    """Create the file's automations once each, identified by name.

    Whether an automation is enabled stays as a person has set it. An automation that is up to date
    is left alone. An update would make the server forget the runs for which it waits, and every
    returning worker calls this.
    """
    expected = yaml.safe_load(AUTOMATIONS.read_text(encoding="utf-8"))["automations"]
    existing = {each["name"]: each for each in api.ask("automations/filter", {"limit": 200})}
    for automation in expected:
        if (found := existing.get(automation["name"])) is None:
            api.ask("automations/", automation)
        elif not _contains(found, automation):
            api.ask(
                f"automations/{found['id']}", {**automation, "enabled": found["enabled"]}, "PUT"
            )


def _contains(found: Any, expected: Any) -> bool:
    """Return whether `found` contains all of `expected`.

    Lists are compared in any order, because the server may keep them as sets.
    """
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name == "enabled" or _contains(found.get(name), value)
            for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(any(_contains(each, one) for each in found) for one in expected)
        )
    return bool(found == expected)


if __name__ == "__main__":
    set_up(
        PrefectApi(os.environ["PREFECT_API_URL"], os.environ.get("PREFECT_API_AUTH_STRING", "")),
        "agentgym",
    )
