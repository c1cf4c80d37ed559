"""Tests of the system packages beside Python: installation, skipped tests and equal lists."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from environments.sciworld import simulator
from environments.webarena import browser

ROOT = Path(__file__).parents[2]
JAVA, BROWSER = "default-jre-headless", "chromium-headless-shell"
DRIVER_LIBRARY = "libatomic1"


def machine(folder: Path, *commands: str, uid: int = 1000) -> Path:
    """Make a folder of programs that stands for a machine with only these commands.

    Its apt-get creates an executable for each package that it should install.
    """
    programs = dict.fromkeys(commands, "exit 0") | {"id": f"echo {uid}"}
    if "apt-get" in commands:
        installs = f'case "$*" in *install*) for p; do case $p in {JAVA}) ln -sf /bin/true {folder}/java;; {BROWSER}) '
        programs["apt-get"] = (
            installs + f"ln -sf /bin/true {folder}/{BROWSER};; esac; done;; esac; echo noise"
        )
    if "failing-apt-get" in commands:
        programs["apt-get"] = "exit 100"
    folder.mkdir(exist_ok=True)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    for name in ("bash", "sed", "ln", "sh", "env"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(shutil.which(name) or name)
    return folder


def run_worlds_script(path: Path, **variables: str) -> tuple[int, str]:
    environment = {"PATH": str(path), **variables}
    done = subprocess.run(
        [ROOT / "locks" / "worlds.sh"], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_skipped_tests_are_named_in_one_line_with_the_command_that_installs_the_packages(
    tmp_path: Path,
) -> None:
    status, output = run_worlds_script(machine(tmp_path / "bin", "apt-get"))
    assert status == 0
    assert output == (
        "The tests of SciWorld and WebArena will be skipped; to run them too: "
        f"sudo apt-get install -y --no-install-recommends {JAVA} {BROWSER} {DRIVER_LIBRARY}\n"
    )
    _, output = run_worlds_script(machine(tmp_path / "bin", "apt-get", "chromium"))
    assert output.startswith("The tests of SciWorld will be skipped;")
    assert BROWSER not in output


def test_root_installs_the_packages_and_a_second_call_is_silent(tmp_path: Path) -> None:
    path = machine(tmp_path / "bin", "apt-get", uid=0)
    assert run_worlds_script(path) == (
        0,
        f"Installing {JAVA} {BROWSER} {DRIVER_LIBRARY} for the tests of SciWorld and WebArena\n",
    )
    assert run_worlds_script(path) == (0, "")
    assert run_worlds_script(path, WEBARENA_CHROMIUM="another")[1].startswith(
        f"Installing {BROWSER} "
    )


@pytest.mark.parametrize(("apt", "uid"), [("apt-get", 1000), ("failing-apt-get", 0), ("java", 0)])
def test_missing_package_is_a_failure_in_ci(tmp_path: Path, apt: str, uid: int) -> None:
    path = machine(tmp_path / "bin", apt, uid=uid)
    assert run_worlds_script(path)[0] == 0
    status, output = run_worlds_script(path, CI="true")
    assert status == 1
    assert "would be skipped; to run them too: " in output
    assert BROWSER in output


def test_messages_readme_images_and_ci_name_the_same_packages() -> None:
    assert browser.INSTALL.endswith(f"--no-install-recommends {BROWSER} {DRIVER_LIBRARY}")
    assert simulator.INSTALL.endswith(f" {JAVA}")
    assert browser.EXECUTABLES[0] == BROWSER
    for name in ("README.md", "Dockerfile", "locks/worlds.sh"):
        text = (ROOT / name).read_text()
        assert JAVA in text, name
        assert f"{BROWSER} {DRIVER_LIBRARY}" in text, name
        installed = re.findall(r"apt-get install[^`&|\n]*", text)
        assert not [
            command for command in installed if re.search(r"chromium(?!-headless-shell)", command)
        ], name
    assert "locks/worlds.sh" in (ROOT / "Makefile").read_text()
    assert "make test" in (ROOT / ".ci" / "run").read_text()


ON_DEMAND = {"torch", "transformers", "faiss", "pyarrow"}
"""Packages that SearchQA imports only for an operator's own corpus."""


def test_the_images_of_the_environment_servers_have_what_their_worlds_import() -> None:
    stages = (
        (ROOT / "Dockerfile")
        .read_text()
        .partition("AS env-packages")[2]
        .partition("AS services")[0]
    )
    lists = [
        (ROOT / "locks" / "images" / name).read_text()
        for name in re.findall(r"locks/image\.sh (\S+)", stages)
    ]
    installed = {
        name
        for text in lists
        for line in text.splitlines()
        if not line.startswith("#")
        for name in line.split()
    }
    imported = {
        name.split(".")[0]
        for path in (ROOT / "environments").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [getattr(node, "module", None) or ""]
        )
    }
    providers = packages_distributions()
    foreign = imported - set(sys.stdlib_module_names) - ON_DEMAND - {"", "environments", "configs"}
    assert [
        name
        for name in sorted(foreign)
        if not installed & {some.lower().replace("_", "-") for some in providers[name]}
    ] == []
