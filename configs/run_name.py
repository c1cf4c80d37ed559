"""Names of runs: method, schedule, environment, seed and overrides.

The name distinguishes runs that are shown side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs.experiment import Experiment

_MOST_OVERRIDES = 4
_LONGEST_VALUE = 40
_ALWAYS_SHOWN = ("name", "algorithm.name", "environment.name", "curriculum", "seeds.training")


def run_name(experiment: Experiment, overrides: Mapping[str, Any] | None = None) -> str:
    """Return the name of a run, e.g. "grpo, stepwise 6-10-16, textcraft, seed 1, steps 60".

    Args:
        experiment: The recipe with its overrides.
        overrides: New values by dotted field name. Those not yet in the name are appended, by the
            last part of the field name if unambiguous.
    """
    seeds = experiment.seeds
    parts = [
        experiment.algorithm.name,
        _schedule(experiment),
        experiment.environment.name,
        f"seed {seeds.training}",
    ]
    different = {
        name: value
        for name, value in (overrides or {}).items()
        if not any(name == shown or name.startswith(f"{shown}.") for shown in _ALWAYS_SHOWN)
        and not (name.startswith("seeds.") and value == seeds.training)
    }
    ends = [name.rpartition(".")[2] for name in different]
    for (name, value), end in list(zip(different.items(), ends, strict=True))[:_MOST_OVERRIDES]:
        parts.append(
            f"{end if ends.count(end) == 1 and not name.startswith('seeds.') else name} "
            f"{_short(value)}"
        )
    if len(different) > _MOST_OVERRIDES:
        parts.append(f"and {len(different) - _MOST_OVERRIDES} more")
    return ", ".join(parts)


def _schedule(experiment: Experiment) -> str:
    """Return the curriculum's kind and numbers, e.g. "stepwise 6-10-16" or "fixed 16"."""
    fields = experiment.curriculum.model_dump(exclude={"kind", "every"})
    fields = fields.get("of", fields)
    values = [fields["horizons"]] if "horizons" in fields else fields.values()
    numbers = [
        number for value in values for number in (value if isinstance(value, list) else [value])
    ]
    shown = "-".join(
        str(number)
        for number in numbers
        if isinstance(number, (int, float)) and not isinstance(number, bool)
    )
    return f"{experiment.curriculum.kind} {shown}".strip()


def _short(value: Any) -> str:
    text = str(value).rstrip("/").rpartition("/")[2] if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
