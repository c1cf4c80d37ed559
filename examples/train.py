"""Train a recipe with changed fields.

python examples/train.py [RECIPE] [--field.path value ...]
python examples/train.py quickstart --seeds.training 1 --algorithm.steps 24
"""

from __future__ import annotations

import sys

from configs.recipe import parse_overrides
from flows.api import train


def main() -> None:
    """Train, and print the success before and after with its 95 % interval."""
    recipe, *fields = sys.argv[1:] or ["quickstart"]
    run = train(recipe, parse_overrides(fields))
    print(run.success()[["step", "success", "success_low", "success_high"]])
    gain = run.gain
    print(f"gain {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]")
    # Imitation may collect no episodes, so its runs have no rollout/success.
    print(run.metrics().filter(["rollout/success", "update/loss"]).tail())
    print(f"newest checkpoint: {run.checkpoint}")


if __name__ == "__main__":
    main()
