"""Files that a person names: YAML files of a folder, and files named in a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationInfo

from configs.config_model import ConfigError
from configs.plugins import nearest


def names_in(folder: Path) -> list[str]:
    """Return the names of the YAML files in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def find_yaml(given: str, folder: Path, what: str, error: type[ConfigError]) -> Path:
    """Return a YAML file, given as a path or by its name in `folder`.

    Args:
        error: Class of the error.

    Raises:
        ConfigError: The file does not exist. The message suggests the most similar name.
    """
    for path in (Path(given), folder / f"{given}.yaml"):
        if path.is_file():
            return path
    known = names_in(folder)
    hint = f" Did you mean {near!r}?" if (near := nearest(Path(given).stem, known)) else ""
    raise error(f"No {what} {given!r}: it is neither a file nor one of {', '.join(known)}.{hint}")


def parquet_files(path: Path) -> list[Path]:
    """Return a parquet file, or those of a folder sorted by name. Empty if there are none."""
    if path.is_dir():
        return sorted(path.glob("*.parquet"))
    return [path] if path.is_file() else []


class _UniqueKeyLoader(yaml.CSafeLoader):
    """Refuses a key that a mapping has twice. PyYAML would keep the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if (key.tag, str(key.value)) in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} occurs twice; merge the two or remove one",
                    problem_mark=key.start_mark,
                )
            seen.add((key.tag, str(key.value)))
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document.

    Raises:
        YAMLError: It is not YAML, or a mapping has a key twice.
    """
    return yaml.load(text, _UniqueKeyLoader)


def read_yaml(path: Path, error: type[ConfigError]) -> dict[str, Any]:
    """Return the mapping in a YAML file. An empty file is an empty mapping.

    Raises:
        ConfigError: The file is not YAML, has a key twice, or is not a mapping.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise error(f"{path} is not YAML: {problem}") from problem
    if not isinstance(tree, dict | None):
        refused = error(
            f"{path} must be a mapping of fields, not {type(tree).__name__}; write lines like name: value"
        )
        refused.codes = {"": "model_type"}  # as pydantic calls it
        raise refused
    return tree or {}


def file_of_field(value: str, info: ValidationInfo) -> Path | None:
    """Return the file that a field names, relative to this folder or to the recipe's folder."""
    folders = [Path(), *((info.context or {}).get("folders", ()))]
    return next(
        (path for folder in folders if (path := folder / Path(value).expanduser()).is_file()), None
    )
