"""Registries of config models: a field of a section names the model that the section is.

The name is a built-in one, an entry point of an installed package, or "module:Class".
Only the named class is imported, and only its fields are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from configs.config_model import ConfigModel
from configs.plugins import load, plugin_names, plugin_target, unknown

M = TypeVar("M", bound=ConfigModel)


@dataclass(frozen=True)
class Registry(Generic[M]):
    """The config models that one section of a recipe can be.

    Attributes:
        what: The section in words, e.g. "algorithm".
        field: The field that names the model.
        base: Base class of all models.
        built_in: Name -> "module:Class" in configs/.
        group: Entry-point group of the models in other packages.
        default: Model used when none is named. None: the field is required.
    """

    what: str
    field: str
    base: type[M]
    built_in: Mapping[str, str]
    group: str
    default: str | None = None

    def names(self) -> list[str]:
        """Return the names of all built-in and installed models."""
        return [
            *self.built_in,
            *(name for name in plugin_names(self.group) if name not in self.built_in),
        ]

    def find(self, name: str) -> type[M]:
        """Return the model of a name, or of a "module:Class".

        A built-in name takes precedence over an entry point.

        Raises:
            ValueError: There is no such model. The message lists the names.
        """
        target = self.built_in.get(name) or plugin_target(self.group, name) or name
        if ":" not in target:
            raise ValueError(f"{unknown(self.what, name, self.names())}, or module:Class")
        found = load(target)
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise ValueError(
                f"{target!r} is not a subclass of {self.base.__module__}.{self.base.__name__}"
            )
        return found

    def all_built_in(self) -> dict[str, type[M]]:
        """Return every built-in model by name."""
        return {name: self.find(name) for name in self.built_in}

    def validated(self, value: Any) -> M:
        """Validate a section with the model that it names. Use as a `BeforeValidator`.

        Raises:
            ValueError: The section is not a mapping.
            ValidationError: It names no model, or its fields are wrong.
        """
        if isinstance(value, self.base):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping with the field {self.field}, not {value!r}")
        name = value.get(self.field, self.default)
        try:
            if name is None:
                raise ValueError(f"is missing; use one of: {', '.join(self.names())}")
            model = self.find(str(name))
        except ValueError as problem:
            why = PydanticCustomError("unknown_name", "{why}", {"why": str(problem)})
            details = InitErrorDetails(type=why, loc=(self.field,), input=name)
            raise ValidationError.from_exception_data(self.what, [details]) from None
        try:
            return model.model_validate({**value, self.field: name})
        except ValidationError as problem:
            details_of_all = [self._with_hint(error, name) for error in problem.errors()]
            raise ValidationError.from_exception_data(self.what, details_of_all) from None

    def _with_hint(self, error: Any, name: str) -> InitErrorDetails:
        """Convert an error of pydantic.

        The message about a field that only other models have names these models.
        """
        kind: Any = error["type"]
        if kind == "extra_forbidden" and len(error["loc"]) == 1:
            field = error["loc"][0]
            others = [
                other for other, model in self.all_built_in().items() if field in model.model_fields
            ]
            if others:
                why = f"is not a field of {name}, only of {', '.join(others)}; remove it"
                kind = PydanticCustomError("field_of_another", "{why}", {"why": why})
        return InitErrorDetails(
            type=kind, loc=error["loc"], input=error["input"], ctx=error.get("ctx", {})
        )
