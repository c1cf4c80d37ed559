"""Print the planned memory per GPU for Qwen2.5-3B and 7B on 1, 2, 4 and 8 GPUs. Needs no GPU.

    python -m tests.benchmarks.gpu_memory

The table is part of docs/gpus.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from configs.recipe import load_recipe
from tasks.training.memory_plan import GB, Machine, PlanRequest, faults, plan_memory, remedies
from tests.support.qwen import SIZES, qwen_folder

GPUS, MEMORIES = (1, 2, 4, 8), (80, 141)
SHORT = {
    "AGENTGYM_ENGINE_SLEEP=true": "sleep",
    "AGENTGYM_ENGINE_MEMORY_FRACTION=": "vLLM ",
    "--policy.lora.rank 32": "LoRA",
}
KINDS = ("weights", "gradients", "optimiser", "reference", "activations")


def row(name: str, folder: str, gpus: int) -> str:
    """Return a row of the table.

    It holds the trainer's memory of each kind in GB. For each GPU size it tells whether the run
    fits, or which changes make it fit.
    """
    recipe = load_recipe(f"textcraft-{name.lower()}")
    verdicts: list[str] = []
    held: dict[str, float] = {}
    for memory in MEMORIES:
        machine = Machine(
            gpus=gpus,
            gpu_memory=memory,
            sharding="fsdp2" if gpus > 1 else "none",
            engine_fraction=0.45,
        )
        request = PlanRequest(experiment=recipe, model=folder, machine=machine)
        plan = plan_memory(request)
        held = plan.trainer
        changes, fitting = remedies(request, plan) if faults(request, plan) else ([], plan)
        words = f"{plan.total / GB:.0f} GB"
        if fitting is None:
            verdicts.append(f"{words}; does not fit")
            continue
        if changes:
            words += f"; with {' + '.join(_short(change) for change in changes)} {fitting.total / GB:.0f} GB"
        verdicts.append(f"{words} ({fitting.kv_tokens // recipe.rollout.trajectory_tokens})")
    return " | ".join([name, str(gpus), *(f"{held[kind] / GB:.1f}" for kind in KINDS), *verdicts])


def _short(change: str) -> str:
    for words, short in SHORT.items():
        change = change.replace(words, short)
    return change


def main() -> None:
    """Print the table."""
    print(
        "| model | GPUs |",
        " | ".join(KINDS),
        "|",
        " | ".join(f"{memory} GB" for memory in MEMORIES),
        "|",
    )
    print("|---|---:|---:|---:|---:|---:|---:|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in SIZES:
            for gpus in GPUS:
                print(f"| {row(name, qwen_folder(name, Path(folder)), gpus)} |", flush=True)


if __name__ == "__main__":
    main()
