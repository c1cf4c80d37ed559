"""Tests of docker-compose.yml: resource limits, secrets and base images."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_limits(name: str) -> None:
    assert {"mem_limit", "cpus", "pids_limit"} <= set(SERVICES[name])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_command_or_variable_contains_the_database_password(name: str) -> None:
    service = SERVICES[name]
    words = json.dumps(
        [service.get("command"), service.get("environment"), service.get("healthcheck")]
    )
    assert "POSTGRES_PASSWORD}" not in words
    assert "POSTGRES_PASSWORD:" not in words
    assert not re.search(r"postgresql\+\w+://[^@\s]*:[^@\s]*@", words)
    uses_database = "@postgres:" in words or "psql" in words or "POSTGRES_PASSWORD_FILE" in words
    assert service.get("secrets", []) == (["postgres-password"] if uses_database else [])


def test_no_command_line_contains_the_login_or_the_token() -> None:
    for name, service in SERVICES.items():
        words = json.dumps(service.get("command"))
        assert not re.search(r"(?<!\$)\$\{?(LOGIN_PASSWORD|ENVIRONMENT_TOKEN)", words), name


def test_base_images_come_from_one_file() -> None:
    pinned = dict(
        re.findall(r"^(\w+) \?= (\S+)$", (ROOT / "locks" / "images.mk").read_text(), re.MULTILINE)
    )
    assert set(pinned) == {"PYTHON_IMAGE", "POSTGRES_IMAGE"}
    for image in pinned.values():
        assert re.fullmatch(r"[a-z0-9./-]+:[A-Za-z0-9._-]+(@sha256:[0-9a-f]{64})?", image)
    for service in SERVICES.values():
        assert service["image"].startswith(("agentgym-", "${POSTGRES_IMAGE:?"))


def test_compose_down_stops_the_services_of_every_profile() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ncompose-down:")[2].split("\n")[1]
    profiles = {each for service in SERVICES.values() for each in service.get("profiles", [])}
    assert profiles
    assert set(re.findall(r"--profile (\S+)", recipe)) == profiles


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage of the Dockerfile, with those of its base."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        head, *lines = stage.splitlines()
        base, name = head.split(" AS ")
        found[name] = [*found.get(base, []), *lines]
    return found


@pytest.mark.parametrize("stage", ["env-light", "env-java", "env-browser", "services", "worker"])
def test_the_user_of_an_image_can_read_its_code_whatever_the_umask_of_the_checkout(
    stage: str,
) -> None:
    lines = stages()[stage]
    copies = [n for n, line in enumerate(lines) if re.match(r"COPY (?!--from)", line)]
    opened = [n for n, line in enumerate(lines) if re.match(r"RUN chmod -R a\+rX \.( |$)", line)]
    users = [n for n, line in enumerate(lines) if re.match(r"USER (?!root)", line)]
    assert max(copies) < max(opened) < min(users)
