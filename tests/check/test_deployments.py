"""Tests of prefect.yaml and automations.yaml, without a server."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from tasks.provision.deploy import keeping_pauses
from tasks.provision.prefect_api import PrefectApi

ROOT = Path(__file__).parents[2]
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())[
    "deployments"
]
AUTOMATIONS: list[dict[str, Any]] = yaml.safe_load((ROOT / "automations.yaml").read_text())[
    "automations"
]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["name"])
def test_the_parameters_of_a_deployment_match_its_flow(deployment: dict[str, Any]) -> None:
    file, _, name = deployment["entrypoint"].partition(":")
    flow = getattr(import_module(file.removesuffix(".py").replace("/", ".")), name)
    validate(
        deployment["parameters"],
        parameter_schema(flow.fn).model_dump_for_openapi(),
        raise_on_error=True,
    )


@pytest.mark.parametrize("automation", AUTOMATIONS, ids=lambda each: each["name"])
def test_an_automation_is_valid_for_prefect(automation: dict[str, Any]) -> None:
    AutomationCore.model_validate(automation)


def test_every_deployment_has_the_tag_of_the_resume_automation() -> None:
    resumed = next(each for each in AUTOMATIONS if each["name"].startswith("resume"))
    tag = resumed["trigger"]["match_related"]["prefect.resource.id"].removeprefix("prefect.tag.")
    assert all(tag in deployment["tags"] for deployment in DEPLOYMENTS)


def test_no_schedule_sets_its_own_toggle() -> None:
    """`active` would switch on a schedule that a person has switched off."""
    schedules = [schedule for each in DEPLOYMENTS for schedule in each.get("schedules", [])]
    assert schedules
    assert not any("active" in schedule for schedule in schedules)


class Deployments(PrefectApi):
    """Prefect's API for deployments that are paused or not."""

    def __init__(self, paused: dict[str, bool]) -> None:
        self.paused = paused

    def ask(self, path: str, body: Any, method: str = "POST") -> Any:
        match path.split("/"):
            case ["deployments", "filter"]:
                return [{"id": each, "paused": paused} for each, paused in self.paused.items()]
            case ["deployments", each, "pause_deployment"]:
                self.paused[each] = True
                return None
            case _:
                raise NotImplementedError(path)


def test_paused_deployments_stay_paused() -> None:
    api = Deployments({"nightly": True, "train": False})
    with keeping_pauses(api):
        api.paused = dict.fromkeys([*api.paused, "new"], False)
    assert api.paused == {"nightly": True, "train": False, "new": False}
