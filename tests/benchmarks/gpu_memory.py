"""What each GPU holds with Qwen2.5-3B and 7B on 1, 2, 4 and 8 GPUs, as a table for the README. No GPU is needed.

python -m tests.benchmarks.gpu_memory
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
    """A line of the table: what the trainer holds of each kind, and for each size of GPU whether it fits, or what makes it fit."""
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
            verdicts.append(f"{words}; nothing helps")
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
    """Prints the table."""
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
