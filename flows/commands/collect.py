"""`agentgym collect`: collect trajectories of any policy as parquet.

The options for policy and world are shared with `agentgym evaluate`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import shorten
from typing import Any, get_args

from configs.collection import Collection
from configs.experiment import Compaction, Experiment, Thinking, TurnFormat
from configs.infrastructure import SettingsError
from configs.model_folder import ModelError, format_of
from configs.recipe import RecipeError, parse_overrides
from flows.command import Arguments, LocalRecords, run_command, set_engine_variables
from flows.requests import collection_request, request_fields, trained_recipe

EXAMPLES = """examples:
  agentgym collect textcraft --oracle --n-tasks 100
  agentgym collect searchqa --model runs/quickstart-1a2b3c/checkpoints/step-000036 --tasks islands-test --samples 8
  agentgym collect babyai --vllm http://gpu1:8000,http://gpu2:8000 --tasks test --out runs/babyai-test
  OPENAI_API_KEY=... agentgym collect textcraft --openai https://api.openai.com/v1 --endpoint-model gpt-4.1 --tasks test

A checkpoint is played with the settings of its run's evaluations: action format, instruction, dtype, token budgets, horizon,
temperature and, in the same world, rules and success score. This also holds if a vLLM server on this machine serves it.
Options override these settings. Every field of the recipe sections rollout and environment can be set, e.g. --rollout.retries 4
or --environment.rules agentgym (fields: configs/experiment.py and configs/environment.py). `agentgym tasks WORLD` prints the task
lists.
The command starts environment servers, unless AGENTGYM_ENVIRONMENT_URLS names running ones.
The same command continues an interrupted collection."""


def main(arguments: list[str]) -> None:
    """Parse the command line and collect."""
    collection, folder = collection_arguments(arguments)
    set_engine_variables()
    records = LocalRecords()
    from flows.collect import collect

    run_command(records, lambda: collect(collection, folder), continues="with the missing episodes")


def collection_arguments(arguments: list[str] | None = None) -> tuple[Collection, Path | None]:
    """Parse and check the command line. Exits on --help and on errors."""
    parser = policy_parser(
        "agentgym collect", "Collect trajectories of any policy as parquet files.", EXAMPLES
    )
    parser.add_argument(
        "--tasks", default="train", help="task list, or file of task indices (default: %(default)s)"
    )
    parser.add_argument(
        "--horizon",
        type=int,
        metavar="N",
        help="maximum number of turns (default: the checkpoint's evaluation horizon, else 30)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        help="sampling temperature, 0 is greedy (default: the checkpoint's evaluation temperature, else 1.0)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="output folder (default: a folder in runs/collected)",
    )
    parsed, rest = parser.parse_known_args(arguments)
    with usage_errors(parser):
        given, trained_by = policy_of(parsed, rest)
        given |= {
            "tasks": parsed.tasks,
            "horizon": parsed.horizon,
            "temperature": parsed.temperature,
        }
        collection = collection_request(given, trained_by)
    check_output_folder(parser, parsed.out)
    print_checkpoint_defaults(trained_by, parsed, rest)
    return collection, parsed.out


def policy_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return a parser of the options for policy, world and number of episodes.

    A flow adds its own options to it.
    """
    parser = Arguments(
        prog,
        "WORLD (--model ... | --vllm ... | --openai ... | --oracle | --random) [options]",
        description,
        examples,
    )
    parser.add_argument(
        "environment", metavar="WORLD", help="a name printed by agentgym worlds, or module:Class"
    )
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument(
        "--model", help="checkpoint folder or Hugging Face name; the model runs in this process"
    )
    who.add_argument(
        "--vllm",
        metavar="URL,...",
        help="URLs of vLLM servers with the same model, comma-separated (start command: tasks/inference/launch_command.py)",
    )
    who.add_argument(
        "--openai",
        metavar="URL",
        help="URL of an OpenAI-compatible endpoint; OPENAI_API_KEY is sent only to OPENAI_BASE_URL (default: OpenAI's)",
    )
    who.add_argument("--oracle", action="store_true", help="the world's expert")
    who.add_argument(
        "--random",
        action="store_true",
        help="uniformly random valid actions (only worlds that list valid actions)",
    )
    parser.add_argument(
        "--endpoint-model", metavar="NAME", help="with --openai: name of the model at the endpoint"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="with --openai or --oracle: tokenizer of this model, to store token ids as well",
    )
    parser.add_argument(
        "--action-format",
        choices=("react", "bare", "tools"),
        help="action format of a turn (default: the checkpoint's, else react)",
    )
    parser.add_argument(
        "--instruction",
        action=argparse.BooleanOptionalAction,
        help="start the prompt with the world's instruction (default: the checkpoint's, else yes)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of the weights, with --model (default: the checkpoint's, else bfloat16)",
    )
    parser.add_argument(
        "--conversation-start",
        metavar="START",
        help="first messages of the prompt: system, agentgym, or a JSON file of messages (default: the checkpoint's, else system)",
    )
    parser.add_argument(
        "--chat-template-kwargs",
        metavar="JSON",
        type=json_object,
        help="JSON object of chat-template variables, e.g. '{\"enable_thinking\": false}' (default: the checkpoint's, else none)",
    )
    parser.add_argument(
        "--thinking",
        choices=get_args(Thinking),
        help="what becomes of thoughts: keep, strip as the chat template does, or stop (default: the checkpoint's, else keep)",
    )
    parser.add_argument(
        "--compaction",
        choices=get_args(Compaction),
        help="what happens to a context without room for a message: none, or drop observations (default: the checkpoint's, else none)",
    )
    parser.add_argument(
        "--n-tasks", type=int, metavar="N", help="use only the first N tasks of each list"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="N",
        help="episodes per task (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="sampling seed (default: %(default)s)")
    return parser


def json_object(word: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ArgumentTypeError: It is not one.
    """
    try:
        value = json.loads(word)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(
            f"{word!r} is not a JSON object; write it like '{{\"enable_thinking\": false}}'"
        )
    return value


def check_output_folder(parser: argparse.ArgumentParser, folder: Path | None) -> None:
    """Make the folder of --out, if it is given. Exits if nothing can be written there."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
    except OSError as problem:
        parser.error(
            f"--out: {folder} cannot be used ({problem.strerror}); name a folder with write "
            "permission"
        )


@contextmanager
def usage_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Turn errors of the block into a usage error that ends the process.

    A message that begins with a field names the option of the field instead.
    """
    try:
        yield
    except RecipeError as problem:
        parser.error(re.sub(r"^(?=[\w.]+( \(.+?\))?: )", "--", str(problem)))
    except (ModelError, SettingsError) as problem:
        parser.error(str(problem))


def policy_of(
    parsed: argparse.Namespace, rest: list[str]
) -> tuple[dict[str, Any], Experiment | None]:
    """Return policy and world as fields of a collection, and the checkpoint's recipe, if any.

    Raises:
        RecipeError, ModelError: A name is wrong.
    """
    kinds = ("model", "vllm", "openai", "oracle", "random")
    kind = next(kind for kind in kinds if getattr(parsed, kind))
    source = {
        "kind": kind,
        "model": parsed.model or parsed.endpoint_model,
        "urls": [
            url.strip() for url in (parsed.vllm or parsed.openai or "").split(",") if url.strip()
        ],
        **{name: getattr(parsed, name) for name in ("tokenizer", *TurnFormat.model_fields)},
    }
    fields = {name: getattr(parsed, name) for name in ("n_tasks", "samples", "seed")}
    given = request_fields(parsed.environment, source, parse_overrides(rest), **fields)
    return given, trained_recipe(source)


def print_checkpoint_defaults(
    trained_by: Experiment | None, parsed: argparse.Namespace, rest: list[str]
) -> None:
    """Print the settings that come from the checkpoint's recipe and not from the command line.

    Args:
        parsed, rest: The command line, as in `policy_of`.
    """
    if trained_by is None:
        return
    values = {name.removeprefix("policy."): value for name, value in format_of(trained_by).items()}
    values |= {
        "horizon": trained_by.evaluation.horizon,
        "temperature": trained_by.evaluation.temperature,
    }
    if trained_by.environment.name == parsed.environment:
        changed = trained_by.environment.served().model_dump(
            exclude={"name"}, exclude_defaults=True
        )
        values |= {f"environment.{name}": shorten(str(each), 60) for name, each in changed.items()}
    given = {**vars(parsed), **parse_overrides(rest)}
    settings = ", ".join(
        f"{name} {str(value).lower()}" for name, value in values.items() if given.get(name) is None
    )
    print(f"Settings taken from the checkpoint's recipe: {settings}", file=sys.stderr)
