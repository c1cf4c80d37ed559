"""The base of every part of a recipe."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    """A part of a recipe: unknown fields are refused, values do not change, docstrings are the fields' descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Fraction = Annotated[float, Field(ge=0, le=1)]
