"""`agentgym train`: train an agent by a recipe and evaluate it."""

from __future__ import annotations

from flows.command import LocalRecords, parse_recipe, recipe_parser, run_command

EXAMPLES = """examples:
  agentgym train configs/quickstart.yaml
  agentgym train quickstart --seeds.training 1 --algorithm.steps 60
  agentgym train quickstart --curriculum '{kind: fixed, horizon: 16}'
  agentgym train textcraft-qwen2.5-3b --policy.model /models/Qwen2.5-3B-Instruct

The same command continues a run that was interrupted."""


def main(arguments: list[str]) -> None:
    """Parse the command line and train."""
    parser = recipe_parser(
        "agentgym train", "Train an agent by ScalingInter-RL and evaluate it.", EXAMPLES
    )
    given, overrides = parse_recipe(parser, arguments)
    records = LocalRecords()
    from flows.scaling_inter import scaling_inter

    run_command(records, lambda: scaling_inter(given.recipe, overrides=overrides))
