"""The command line of `flows.collect`. Imports nothing slow, so that --help answers at once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.collection import Collection
from configs.recipe import RecipeError, explain, parse_overrides
from environments.environment import WorldError
from environments.registry import entry_of

EXAMPLES = """examples:
  python -m flows.collect textcraft --oracle --n-tasks 100
  python -m flows.collect textcraft --model runs/quickstart-1a2b3c/checkpoints/step-000042 --action-format bare --no-instruction \\
      --dtype float32 --tasks wood-test --samples 8 --rollout.turn_tokens 24 --rollout.trajectory_tokens 1024
  python -m flows.collect babyai --vllm http://gpu1:8000,http://gpu2:8000 --tasks test --out runs/babyai-test
  OPENAI_API_KEY=... python -m flows.collect textcraft --openai https://api.openai.com/v1 --endpoint-model gpt-4.1 --tasks test

Any field of the recipe's parts rollout and environment can be set, e.g. --rollout.retries 4 or --environment.rules agentgym;
configs/experiment.py and configs/environment.py describe them. Environment servers are started for the collection, or named by
AGENTGYM_ENVIRONMENT_URLS. The same command goes on where a former one was cut off."""


def collection_arguments(arguments: list[str] | None = None) -> tuple[Collection, Path | None]:
    """Reads and checks the command line; ends the process on --help and on mistakes."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.collect",
        description="Collect trajectories of any policy to parquet.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("environment", help="the world: a name that python -m environments list prints, or module:Class")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--model", help="a checkpoint's folder or a Hugging Face name, run in this process")
    who.add_argument("--vllm", metavar="URL,...", help="vLLM servers of one model (tasks/inference/launch_command.py has their command)")
    who.add_argument("--openai", metavar="URL", help="an endpoint of OpenAI's chat protocol; its key is read from OPENAI_API_KEY")
    who.add_argument("--oracle", action="store_true", help="the world's own expert")
    parser.add_argument("--endpoint-model", metavar="NAME", help="with --openai: the endpoint's name of the model")
    parser.add_argument("--tokenizer", metavar="NAME", help="with --openai, --oracle: also store token ids, as this model would write them")
    parser.add_argument("--action-format", choices=("react", "bare"), default="react", help="form of a turn (default: %(default)s)")
    parser.add_argument("--no-instruction", action="store_true", help="leave the environment's instruction out of the prompt")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16", help="with --model (default: %(default)s)"
    )
    parser.add_argument(
        "--conversation-start",
        default="system",
        metavar="START",
        help="system, agentgym, or a JSON file (default: %(default)s)",
    )
    parser.add_argument("--tasks", default="train", help="a task list, or a file of task indices (default: %(default)s)")
    parser.add_argument("--n-tasks", type=int, metavar="N", help="only the first N of them")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="episodes per task (default: %(default)s)")
    parser.add_argument("--horizon", type=int, default=30, metavar="N", help="turn limit (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampling; 0 is greedy (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the parts go (default: below runs/collected)")
    parsed, rest = parser.parse_known_args(arguments)
    kind = "model" if parsed.model else "vllm" if parsed.vllm else "openai" if parsed.openai else "oracle"
    try:
        overrides = parse_overrides(rest)
        if strange := [name for name in overrides if not name.startswith(("rollout.", "environment."))]:
            raise RecipeError(f"there is no option --{strange[0]}; --help lists them")
        collection = Collection.model_validate(
            {
                "environment": {"name": parsed.environment} | _below("environment", overrides),
                "source": {
                    "kind": kind,
                    "model": parsed.model or parsed.endpoint_model,
                    "urls": [url.strip() for url in (parsed.vllm or parsed.openai or "").split(",") if url.strip()],
                    "tokenizer": parsed.tokenizer,
                    "action_format": parsed.action_format,
                    "instruction": not parsed.no_instruction,
                    "conversation_start": parsed.conversation_start,
                    "dtype": parsed.dtype,
                },
                "tasks": parsed.tasks,
                "n_tasks": parsed.n_tasks,
                "samples": parsed.samples,
                "horizon": parsed.horizon,
                "temperature": parsed.temperature,
                "seed": parsed.seed,
                "rollout": _below("rollout", overrides),
            }
        )
        entry_of(collection.environment.name)
    except (RecipeError, WorldError) as problem:
        parser.error(str(problem))
    except ValidationError as problem:
        parser.error(f"these values cannot be used:\n{explain(problem)}")
    return collection, parsed.out


def _below(part: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """The overrides of one part, without its name."""
    return {name.removeprefix(f"{part}."): value for name, value in overrides.items() if name.startswith(f"{part}.")}
