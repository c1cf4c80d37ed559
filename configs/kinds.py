"""Registries of config classes: a recipe names the class, or gives its module and class.

Only the named class is imported, and only its fields are allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from configs.part import Part

P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Kinds(Generic[P]):
    """A registry of the variants of one config section.

    Attributes:
        what: The section in words, e.g. "algorithm".
        field: The field that names the variant.
        base: Base class of all variants.
        table: Name -> "module:Class".
        default: Variant used when none is named. None: the field is required.
    """

    what: str
    field: str
    base: type[P]
    table: Mapping[str, str]
    default: str | None = None

    def find(self, name: str) -> type[P]:
        """Return the class of a variant, given its registered name or its module and class.

        Raises:
            ValueError: No such class exists. The message lists the registered names.
        """
        module, colon, attribute = self.table.get(name, name).partition(":")
        try:
            found = getattr(import_module(module), attribute) if colon else None
        except (ImportError, AttributeError) as problem:
            raise ValueError(f"the {self.what} {name!r} cannot be imported: {problem}") from None
        if not (isinstance(found, type) and issubclass(found, self.base)):
            close = difflib.get_close_matches(name, self.table, 1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise ValueError(f"there is no {self.what} {name!r}{hint} It is one of {', '.join(self.table)}, or module:Class of your own")
        return found

    def all(self) -> dict[str, type[P]]:
        """Return every registered class by name."""
        return {name: self.find(name) for name in self.table}

    def validated(self, value: Any) -> P:
        """Validate a section with the class that it names. Use as a `BeforeValidator`.

        Raises:
            ValueError: It names no variant, or its fields are wrong (a ValidationError with the
                location).
        """
        if isinstance(value, self.base):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"must hold the fields of the {self.what}, {self.field} first; it holds {value!r}")
        name = value.get(self.field, self.default)
        try:
            if name is None:
                raise ValueError(f"is missing; it is one of {', '.join(self.table)}")
            kind = self.find(str(name))
        except ValueError as problem:
            why = PydanticCustomError("kind", "{why}", {"why": str(problem)})
            raise ValidationError.from_exception_data(self.what, [InitErrorDetails(type=why, loc=(self.field,), input=name)]) from None
        try:
            return kind.model_validate({**value, self.field: name})
        except ValidationError as problem:
            raise ValidationError.from_exception_data(self.what, [self._with_hint(error, name) for error in problem.errors()]) from None

    def _with_hint(self, error: Any, name: str) -> InitErrorDetails:
        """Convert a pydantic error.

        For a field that only other variants have, the message names these variants.
        """
        kind: Any = error["type"]
        if kind == "extra_forbidden" and len(error["loc"]) == 1:
            others = [other for other, found in self.all().items() if error["loc"][0] in found.model_fields]
            if others:
                kind = PydanticCustomError(
                    "of_another", "{why}", {"why": f"does nothing in {name}, only in {', '.join(others)}; leave it out"}
                )
        return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))
