"""The reference pages of the site, generated from configuration models and command-line parsers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from configs.algorithm import ALGORITHMS
from configs.collection import Collection
from configs.curriculum import SCHEDULES
from configs.experiment import Experiment
from configs.infrastructure import PREFIX, InfraSettings
from configs.launch import Launch
from configs.study import Study
from flows.cli import COMMANDS

ROOT = Path(__file__).parents[1]
MODULES = ("tasks.evaluation.baselines", "environments.searchqa.build", "tasks.starter")
"""Commands without an entry in `agentgym`, as `python -m` runs them."""


def reference_pages() -> dict[str, str]:
    """Return the generated pages: source URI -> Markdown."""
    return {
        "reference/recipe.md": recipe_page(),
        "reference/studies-and-collections.md": studies_page(),
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
    }


def recipe_page() -> str:
    """Return the page of all fields of a recipe."""
    intro = "A recipe is a YAML file with the sections below. Every field can be overridden on the command line by its dotted name."
    parts = [f"# Recipe fields\n\n{intro}\n", *sections(Experiment, "")]
    for title, name, registry in (
        ("Algorithms", "algorithm", ALGORITHMS),
        ("Schedules", "curriculum", SCHEDULES),
    ):
        parts.append(f"## {title}\n\nThe field `{name}.{registry.field}` selects one of these.\n")
        parts.append(f"### Fields of every entry of `{name}`\n\n{table(registry.base, f'{name}.')}")
        shared = registry.base.model_fields
        for kind, model in registry.all_built_in().items():
            own = {
                key: field
                for key, field in model.model_fields.items()
                if not same(field, shared.get(key))
            }
            parts.append(
                f"### `{name}.{registry.field}: "
                f"{kind}`\n\n{paragraphs(model.__doc__)}\n\n{table(model, f'{name}.', own)}"
            )
            parts += [
                section
                for key in own
                for section in nested(model.model_fields[key], f"{name}.{key}", level=4)
            ]
    return "\n".join(parts)


def studies_page() -> str:
    """Return the page of the fields of studies, collections and launch files."""
    parts = ["# Studies, collections and launch files\n"]
    for title, model in (("Study", Study), ("Collection", Collection), ("Launch file", Launch)):
        parts += [f"## {title}\n\n{paragraphs(model.__doc__)}\n\n{table(model, '')}"]
        parts += [
            section
            for name, field in model.model_fields.items()
            if name not in Experiment.model_fields
            for section in nested(field, name, level=3)
        ]
    return "\n".join(parts)


def settings_page() -> str:
    """Return the page of the environment variables."""
    return f"# Settings\n\n{paragraphs(InfraSettings.__doc__)}\n\n{table(InfraSettings, PREFIX, upper=True)}"


def commands_page() -> str:
    """Return the page of the command lines, as their `--help` prints them."""
    front = "import sys; from flows.cli import main; sys.exit(main())"
    calls = {f"agentgym {name}": ["-c", front, name] for name in COMMANDS}
    calls |= {f"python -m {name}": ["-m", name] for name in MODULES}
    with ThreadPoolExecutor(2) as pool:
        helps = list(pool.map(help_of, calls.values()))
    parts = [
        f"## `{shown}`\n\n```` text\n{text}\n````\n"
        for shown, text in zip(calls, helps, strict=True)
    ]
    return (
        "# Commands\n\nEach section shows what the command prints with `--help`.\n\n"
        + "\n".join(parts)
    )


def help_of(call: list[str]) -> str:
    """Return what a Python command line prints with `--help`."""
    return subprocess.run(
        [sys.executable, *call, "--help"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def sections(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield a section for the scalar fields of a model, and then one for each nested model."""
    scalars = {name: field for name, field in model.model_fields.items() if not model_of(field)}
    yield f"## Top level\n\n{paragraphs(model.__doc__)}\n\n{table(model, prefix, scalars)}"
    for name, field in model.model_fields.items():
        if name not in ("algorithm", "curriculum"):
            yield from nested(field, f"{prefix}{name}", level=2)


def nested(field: FieldInfo, path: str, level: int) -> Iterator[str]:
    """Yield a section for the model that a field holds, and for the models inside it."""
    model = model_of(field)
    if model is None or model in (ALGORITHMS.base, SCHEDULES.base):
        return
    scalars = {name: each for name, each in model.model_fields.items() if not model_of(each)}
    yield f"{'#' * level} `{path}`\n\n{paragraphs(model.__doc__)}\n\n{table(model, f'{path}.', scalars)}"
    for name, each in model.model_fields.items():
        yield from nested(each, f"{path}.{name}", level)


def model_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model that a field holds, directly or optionally."""
    for each in (field.annotation, *get_args(field.annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def same(field: FieldInfo, other: FieldInfo | None) -> bool:
    """Return whether a field is inherited without changes."""
    return other is not None and (field.annotation, field.description, field.default) == (
        other.annotation,
        other.description,
        other.default,
    )


def table(
    model: type[BaseModel],
    prefix: str,
    fields: Mapping[str, FieldInfo] | None = None,
    upper: bool = False,
) -> str:
    """Return the table of a model's fields: name, type and range, default, description."""
    chosen = model.model_fields if fields is None else fields
    if not chosen:
        return "It has no further fields.\n"
    rows = ["| field | type | default | description |", "|---|---|---|---|"]
    for name, field in chosen.items():
        full = prefix + (name.upper() if upper else name)
        rows.append(
            f"| `{full}` | {type_of(field)} | {default_of(field)} | {cell(field.description)} |"
        )
    return "\n".join(rows) + "\n"


def type_of(field: FieldInfo) -> str:
    """Return the type and the range of a field's values, in words."""
    if model_of(field):
        return "section" if field.annotation is model_of(field) else "section, or empty"
    adapted: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
    schema = adapted.json_schema()
    return schema_type(schema, schema.get("$defs", {}))


def schema_type(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """Return a JSON schema in words."""
    if "$ref" in schema:
        return schema_type(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        words = [schema_type(each, defs) for each in schema["anyOf"] if each.get("type") != "null"]
        empty = ["empty"] if any(each.get("type") == "null" for each in schema["anyOf"]) else []
        return " or ".join(dict.fromkeys([*words, *empty]))
    kind = schema.get("type")
    if kind == "array" and "prefixItems" in schema:
        return f"({', '.join(schema_type(each, defs) for each in schema['prefixItems'])})"
    if kind == "array":
        items = schema.get("items") or {}
        return f"list of {schema_type(items, defs)}" if items else "list"
    if kind == "object":
        return "section" if "properties" in schema else "mapping"
    word = {
        "integer": "integer",
        "number": "number",
        "boolean": "true or false",
        "string": "text",
    }.get(str(kind), "any")
    return " ".join([word, *bounds(schema)]) + (
        f" matching `{escaped(schema['pattern'])}`" if "pattern" in schema else ""
    )


def bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the bounds of a number."""
    if "minimum" in schema and "maximum" in schema:
        yield f"from {schema['minimum']:g} to {schema['maximum']:g}"
        return
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if key in schema:
            yield f"{sign} {schema[key]:g}"


def default_of(field: FieldInfo) -> str:
    """Return a field's default as a recipe writes it."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if model_of(field) and default is not None:
        return "its defaults"
    if default is None or default is PydanticUndefined:
        return "empty"
    shown = str(default) if isinstance(default, str | Path) else json.dumps(default, default=str)
    return f"`{escaped(shown)}`" if shown else "empty"


def paragraphs(text: str | None) -> str:
    """Return a docstring as Markdown."""
    lines = [
        line.strip() for line in (text or "").partition("\nAttributes:")[0].strip().splitlines()
    ]
    return marked(re.sub(r"(?<=[^\n])\n(- )", r"\n\1", "\n".join(lines)))


def cell(text: str | None) -> str:
    """Return a docstring as one cell of a table."""
    blocks = re.split(r"\n\s*\n", (text or "").strip())
    made = []
    for block in blocks:
        items = re.split(r"(?:^|\n)\s*- ", block)
        lead, rest = items[0], items[1:]
        made.append(
            "<br>".join(
                filter(
                    None,
                    [
                        marked(" ".join(lead.split())),
                        *(f"• {marked(' '.join(item.split()))}" for item in rest),
                    ],
                )
            )
        )
    return "<br><br>".join(made).replace("|", "\\|")


def marked(text: str) -> str:
    """Escape what Markdown or HTML would interpret outside of code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if i % 2 else re.sub(r"([<*_])", lambda m: {"<": "&lt;"}.get(m[1], f"\\{m[1]}"), part)
        for i, part in enumerate(parts)
    )


def escaped(text: str) -> str:
    """Escape the separator of a table's cells."""
    return text.replace("|", "\\|")
