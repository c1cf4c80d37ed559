"""Tests of `make docs`: the site is complete, and a broken link is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings
from flows.cli import COMMANDS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(site),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    made = build(ROOT / "mkdocs.yml", folder)
    assert made.returncode == 0, made.stderr
    return folder


def fields(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of a model's fields."""
    found = []
    for name, field in model.model_fields.items():
        inner: Any = field.annotation
        inside = (
            isinstance(inner, type)
            and issubclass(inner, BaseModel)
            and name not in ("algorithm", "curriculum")
        )
        found += fields(inner, f"{prefix}{name}.") if inside else [f"{prefix}{name}"]
    return found


def test_the_reference_has_every_field_setting_and_command(site: Path) -> None:
    recipe = (site / "reference" / "recipe" / "index.html").read_text(encoding="utf-8")
    names = [
        name
        for name in fields(Experiment)
        if name not in ("algorithm", "curriculum", "policy.lora")
    ]
    assert len(names) > 40
    assert [
        name
        for name in [*names, "policy.lora.rank", "algorithm.clip_low", "curriculum.every"]
        if f"<code>{name}</code>" not in recipe
    ] == []
    commands = (site / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"<code>agentgym {name}</code>" not in commands] == []
    settings = (site / "reference" / "settings" / "index.html").read_text(encoding="utf-8")
    assert [
        name
        for name in InfraSettings.model_fields
        if f"<code>AGENTGYM_{name.upper()}</code>" not in settings
    ] == []


def test_no_page_names_this_machine(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    private = {str(ROOT), str(Path.home()), sys.prefix} - {"/", "/root"}
    assert [
        page
        for page in pages
        for text in [page.read_text(encoding="utf-8")]
        if any(path in text for path in private)
    ] == []


@pytest.mark.parametrize(
    "fault",
    ["[no page](missing.md)", "[no anchor](#missing)", "[no anchor there](other.md#missing)", ""],
)
def test_a_broken_link_or_a_page_outside_the_navigation_is_an_error(
    tmp_path: Path, fault: str
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Start\n\n[other](other.md)\n\n{fault}\n", encoding="utf-8")
    (docs / "other.md").write_text("# Other\n", encoding="utf-8")
    nav = ["index.md", "other.md"] if fault else ["index.md"]
    lines = [
        f"INHERIT: {ROOT / 'mkdocs.yml'}",
        f"docs_dir: {docs}",
        "hooks: []",
        f"nav: {nav}",
        "theme: {name: mkdocs}",
    ]
    (tmp_path / "mkdocs.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert build(tmp_path / "mkdocs.yml", tmp_path / "site").returncode == 1
    (docs / "index.md").write_text("# Start\n\n[other](other.md)\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(
        "\n".join(lines).replace(str(nav), str(["index.md", "other.md"])) + "\n", encoding="utf-8"
    )
    assert build(tmp_path / "mkdocs.yml", tmp_path / "site").returncode == 0
