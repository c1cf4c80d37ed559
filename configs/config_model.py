"""The base class of every section of a recipe, and of every error in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ConfigModel(BaseModel):
    """A config section.

    Unknown fields are rejected, values are immutable, and docstrings are the fields' descriptions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def shown_last(*names: str) -> Callable[[dict[str, Any]], None]:
    """Return a `json_schema_extra` by which forms show the fields of subclasses before these fields."""

    def move(schema: dict[str, Any]) -> None:
        fields = schema["properties"]
        fields |= {name: fields.pop(name) for name in names}

    return move


Fraction = Annotated[float, Field(ge=0, le=1)]


class ConfigError(ValueError):
    """An invalid file, form or environment. The message names each field, its value and the fix.

    Attributes:
        codes: Dotted name of each invalid field or section -> code of its error (pydantic's, or
            that of a registry). Empty if no single field is invalid.
    """

    def __init__(self, message: str, problem: ValidationError | None = None) -> None:
        """`problem` is the error of pydantic that the message explains."""
        super().__init__(message)
        errors = problem.errors(include_context=False) if problem is not None else []
        self.codes = {".".join(map(str, error["loc"])): error["type"] for error in errors}
