"""Parts of a recipe of which there are several kinds: each is one class, found by a name, or by its module and class.

Only the class that a recipe names is imported, and it alone says which fields there are.
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
    """The kinds of a part.

    Attributes:
        what: The part in words, e.g. "algorithm".
        field: The field that names the kind.
        base: What all kinds are.
        table: Name -> "module:Class".
        default: The kind of a part that does not name one; None where it must.
    """

    what: str
    field: str
    base: type[P]
    table: Mapping[str, str]
    default: str | None = None

    def find(self, name: str) -> type[P]:
        """The class of a kind, by its name in the table or by module and class.

        Raises:
            ValueError: There is none; the message names those that exist.
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
        """Every kind of the table, by name."""
        return {name: self.find(name) for name in self.table}

    def validated(self, value: Any) -> P:
        """Checks a part by the class that it names; to be a `BeforeValidator`.

        Raises:
            ValueError: It names none, or its fields are wrong (a ValidationError, which says where).
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
        """An error of pydantic's; for a field that only other kinds have, one that names them."""
        kind: Any = error["type"]
        if kind == "extra_forbidden" and len(error["loc"]) == 1:
            others = [other for other, found in self.all().items() if error["loc"][0] in found.model_fields]
            if others:
                kind = PydanticCustomError(
                    "of_another", "{why}", {"why": f"does nothing in {name}, only in {', '.join(others)}; leave it out"}
                )
        return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))
