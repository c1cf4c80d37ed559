"""`agentgym plan`: estimate turns, tokens, memory and time of a recipe."""

from __future__ import annotations

from pathlib import Path

from configs.infrastructure import infra_settings
from configs.placement import PlacementError
from configs.recipe import RecipeError, load_recipe
from flows.command import parse_recipe, positive, positive_number, recipe_parser

EXAMPLES = """examples:
  agentgym plan quickstart
  agentgym plan textcraft-qwen2.5-7b --gpus 8 --gpu H100
  agentgym plan smollm2-babyai --measured runs/smollm2-babyai-1a2b3c4d5e6f
  agentgym plan textcraft-qwen2.5-3b --gpus 2 --gpu-memory 40 --rollout.turn_tokens 1024

Nothing is trained. The expert plays a few tasks, and the estimates of turns and tokens use its episodes."""


def main(arguments: list[str]) -> None:
    """Parse the command line and print the plan."""
    parser = recipe_parser(
        "agentgym plan",
        "Estimate what a recipe needs, without running it.",
        EXAMPLES,
        "[--gpus N] [--gpu KIND] [--gpu-memory GB] [--measured RUN]",
    )
    parser.add_argument(
        "--gpus",
        type=positive,
        metavar="N",
        help="number of GPUs, those of vLLM servers included (default: this machine's; with --gpu or --gpu-memory one per process)",
    )
    parser.add_argument(
        "--gpu",
        choices=["A100", "H100", "H200"],
        help="GPU type (default: H200 if --gpu-memory is above 80, else H100; without --gpus that of this machine)",
    )
    parser.add_argument(
        "--gpu-memory",
        type=positive_number,
        metavar="GB",
        help="memory per GPU (default: that of the GPU type, else 80; without --gpus that of this machine)",
    )
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="RUN",
        help="folder of a run on the machine in question; its steps so far give the time",
    )
    given, overrides = parse_recipe(parser, arguments, runs_here=False)
    from flows.gpu_memory import requested_machine
    from flows.model_check import fit_experiment
    from flows.plan import plan
    from tasks.tracking.step_metrics_file import METRICS, read_steps
    from tasks.training.step_time import measured_speed

    try:
        speed = given.measured and measured_speed(read_steps(given.measured / METRICS))
    except ValueError as problem:
        raise SystemExit(
            f"{parser.prog}: --measured {given.measured}: {problem}; give the folder of a run that "
            "has trained a step"
        ) from None
    try:
        infrastructure = infra_settings()
        experiment = fit_experiment(load_recipe(given.recipe, overrides), needs_tokenizer=False)
        machine, placement = requested_machine(
            infrastructure, given.gpus, given.gpu_memory, given.gpu, experiment.rollout.engine
        )
        print(plan(experiment, infrastructure, machine, placement, speed))
    except (PlacementError, RecipeError) as problem:
        raise SystemExit(f"{parser.prog}: {problem}") from None
