"""Tests of the import rules between packages, and of what importing a module loads."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.locks import LEFT_OUT

ROOT = Path(__file__).parents[2]
BELOW = {
    "flows": {"tasks", "environments", "configs", "dashboards"},
    "tasks": {"environments", "configs"},
    "environments": {"configs"},
    "configs": set(),
    "dashboards": {
        "tasks.files",
        "tasks.rollout",
        "tasks.evaluation",
        "tasks.agents",
        "tasks.provision",
        "tasks.tracking.mlflow_page",
        "tasks.tracking.outbox",
        "tasks.tracking.owner",
        "tasks.tracking.run_folder",
        "tasks.tracking.step_metrics_file",
        "tasks.tracking.timeline",
        "tasks.training.collapse",
        "tasks.training.groups",
        "environments",
        "configs",
    },
}
HEAVY = {"torch", "transformers", "trl", "vllm", "ray"}
BARRED_FROM_ENVIRONMENTS = HEAVY | {"prefect", "mlflow", "accelerate", "datasets"}
ON_DEMAND = {"environments/searchqa/retrieval/e5.py": {"torch", "transformers"}}
"""Files that may import heavy packages inside functions. Importing the file must not load them."""
STARTED_BY_US = {
    "flows.job",
    "flows.settle",
    "tasks.agents.chat_format_check",
    "tasks.provision.containers",
    "tasks.provision.deploy",
    "tasks.provision.empty_databases",
    "tasks.provision.heartbeats",
    "tasks.provision.prefect_set_up",
    "tasks.provision.subreaper",
    "tasks.provision.supervisor",
    "tasks.provision.worker",
    "tasks.training.forked_launch",
    "tasks.training.launch",
    "tasks.training.memory_plan",
}
ALLOWED_IN_CONFIGS = {"pydantic", "pydantic_core", "pydantic_settings", "yaml", "configs"} | set(
    sys.stdlib_module_names
)


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path: Path) -> Iterator[str]:
    """Yield the full names of all modules that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            assert node.module is not None
            # `from tasks import rollout` imports tasks.rollout
            yield from (
                f"{node.module}.{alias.name}" if node.module in BELOW else node.module
                for alias in node.names
            )


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("package", BELOW)
def test_imports_between_our_packages_go_down_only(package: str) -> None:
    upward = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imported_names(path)
        if within(name, set(BELOW)) and not within(name, BELOW[package] | {package})
    ]
    assert not upward


def test_environments_stay_free_of_training_and_orchestration() -> None:
    barred = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules("environments")
        for name in imported_names(path)
        if within(
            name, BARRED_FROM_ENVIRONMENTS - ON_DEMAND.get(str(path.relative_to(ROOT)), set())
        )
    ]
    assert not barred


def test_configs_import_only_pydantic_yaml_and_the_standard_library() -> None:
    foreign = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules("configs")
        for name in imported_names(path)
        if not within(name, ALLOWED_IN_CONFIGS)
    ]
    assert not foreign


def test_every_imported_package_is_required_by_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {
        canonicalize_name(Requirement(line).name)
        for extra, lines in project["optional-dependencies"].items()
        for line in lines
        if extra != "dev"
    }
    left = [Requirement(line) for line in project["dependencies"]]
    while left:
        name = canonicalize_name(left.pop().name)
        if name not in required | LEFT_OUT:
            required.add(name)
            needed = map(Requirement, importlib.metadata.requires(name) or [])
            left += [r for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    owners = importlib.metadata.packages_distributions()
    unmet = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package in BELOW
        for path in modules(package)
        for name in {full.partition(".")[0] for full in imported_names(path)}
        if name not in {*BELOW, *sys.stdlib_module_names}
        and required.isdisjoint(map(canonicalize_name, owners.get(name, [name])))
    ]
    assert not unmet


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from tasks import rollout", "tasks.rollout"),
        ("import torch.nn", "torch.nn"),
        ("def f():\n from prefect.x import y", "prefect.x"),
    ],
)
def test_every_form_of_import_is_found(source: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(source)
    assert list(imported_names(file)) == [name]


def run(code: str, packages: set[str]) -> tuple[set[str], str]:
    """Run code in a fresh interpreter.

    Returns:
        The members of `packages` that it loaded, and its standard output.
    """
    report = f"import sys; print('loaded:', *({packages!r} & set(sys.modules)), file=sys.stderr)"
    wrapped = f"try:\n    exec({code!r}, {{}})\nexcept SystemExit as end:\n    assert not end.code, end.code\nfinally:\n    {report}"
    done = subprocess.run(
        [sys.executable, "-c", wrapped], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("loaded:")[2].split()), done.stdout


LOADED = "print([name for name in sys.modules if name.partition('.')[0] in ('tasks', 'flows', 'environments', 'dashboards')])"


def test_configs_and_recipes_load_without_higher_packages() -> None:
    code = f"""import sys
{import_all("configs")}
from configs.recipe import load_recipe, recipe_names
from configs.study import load_study, study_names
for name in recipe_names():
    load_recipe(name)
for name in study_names():
    load_study(name)
for algorithm in ALGORITHMS.all_built_in():
    load_recipe("textcraft", {{"algorithm.name": algorithm}} | ({{"algorithm.teacher": "any"}} if algorithm == "distillation" else {{}}))
"""
    code = code.replace(
        "from configs.recipe", "from configs.algorithm import ALGORITHMS\nfrom configs.recipe"
    )
    _, printed = run(code + LOADED, HEAVY)
    assert printed.strip() == "[]"


def test_packages_have_no_circular_imports() -> None:
    names = {module_name(path): path for package_name in BELOW for path in modules(package_name)}
    imports_of = {
        name: {found for found in targets(path) if found in names} - {name}
        for name, path in names.items()
    }
    TopologicalSorter(imports_of).prepare()  # raises CycleError, which names the modules of a cycle


def targets(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports at run time, except under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = {
        id(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for below in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) not in typing and isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif id(node) not in typing and isinstance(node, ast.ImportFrom):
            yield from (
                name
                for alias in node.names
                for name in (f"{node.module}.{alias.name}", str(node.module))
            )


def import_all(package: str) -> str:
    return "".join(
        f"import {module_name(path)}\n" for path in modules(package) if path.stem != "__main__"
    )


def test_worlds_and_their_server_import_without_training_and_orchestration() -> None:
    loaded, _ = run(import_all("environments"), BARRED_FROM_ENVIRONMENTS)
    assert loaded == set()


def test_flows_import_without_torch() -> None:
    loaded, _ = run(import_all("flows"), HEAVY)
    assert loaded == set()


def commands() -> list[str]:
    """Return the names of all modules that users run as commands."""
    return [
        module_name(path).removesuffix(".__main__")
        for package in BELOW
        for path in modules(package)
        if (path.stem == "__main__" or '__name__ == "__main__"' in path.read_text(encoding="utf-8"))
        and module_name(path) not in STARTED_BY_US
    ]


@pytest.mark.parametrize("command", commands())
def test_help_prints_an_example_without_torch(command: str) -> None:
    loaded, printed = run(
        f"import runpy, sys\nsys.argv = ['x', '--help']\nrunpy.run_module({command!r}, "
        "run_name='__main__', alter_sys=True)",
        HEAVY,
    )
    assert loaded == set()
    assert "example" in printed or "e.g." in printed


def test_commands_of_the_readme_are_found() -> None:
    assert {"flows.scaling_inter", "environments"} <= set(commands())


def test_loaded_heavy_packages_are_reported() -> None:
    loaded, _ = run("import sys, types\nsys.modules['vllm'] = types.ModuleType('vllm')", HEAVY)
    assert loaded == {"vllm"}
