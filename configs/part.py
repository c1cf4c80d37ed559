"""The base class of every section of a recipe."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    """A config section.

    Unknown fields are rejected, values are immutable, and docstrings are the fields' descriptions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Fraction = Annotated[float, Field(ge=0, le=1)]
