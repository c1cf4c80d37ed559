"""Evaluate the newest checkpoint of a run against the random policy on the same tasks.

python examples/compare_with_baseline.py RUN [N_TASKS]
python examples/compare_with_baseline.py runs/quickstart-1a2b3c
"""

from __future__ import annotations

import sys

from flows.api import Evaluation, Policy, evaluate, load_run


def main() -> None:
    """Evaluate both policies, and print the paired difference of each cell."""
    run = load_run(sys.argv[1])
    if run.checkpoint is None:
        sys.exit(f"{run.folder} has no checkpoint yet")
    world, settings = run.recipe.environment.name, run.recipe.evaluation
    n_tasks = int(sys.argv[2]) if len(sys.argv) > 2 else settings.n_tasks
    judged = {
        f"environment.{name}": getattr(run.recipe.environment, name)
        for name in ("rules", "success_score")
    }

    def play(policy: Policy, against: Evaluation | None = None) -> Evaluation:
        return evaluate(
            world,
            policy,
            tasks=[settings.tasks],
            horizons=[settings.horizon],
            temperatures=[settings.temperature],
            samples=settings.samples,
            n_tasks=n_tasks,
            against=against,
            overrides=judged,
        )

    trained = play(run.checkpoint, against=play("random"))
    print(trained.success()[["success", "success_low", "success_high", "turns"]])
    for cell, change in trained.differences().items():
        print(f"{cell}: {change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}] over random")


if __name__ == "__main__":
    main()
