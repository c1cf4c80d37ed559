"""`agentgym serve MODEL`: serve a policy to chat clients, and record their episodes."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from configs.collection import Source
from configs.experiment import Rollout
from configs.infrastructure import infra_settings
from configs.model_folder import ModelError
from configs.placement import OWN_FRACTION
from configs.recipe import RecipeError, explain, parse_overrides
from environments.address import ListenError, listen, port
from flows.command import Arguments, positive, set_engine_variables
from flows.commands.collect import usage_errors
from flows.model_check import fit_source
from flows.requests import trained_recipe
from flows.signals import INTERRUPTED

if TYPE_CHECKING:
    from tasks.endpoint.app import Endpoint

CHAMPION = "champion"
EXAMPLES = """examples:
  agentgym serve runs/quickstart-1a2b3c/checkpoints/step-000036 --record runs/recorded/harness
  agentgym serve champion --verifier mine.checks:reward --record runs/recorded/tonight
  agentgym serve Qwen/Qwen2.5-3B-Instruct --rollout.trajectory_tokens 16384

MODEL is a checkpoint, a Hugging Face name, a GGUF file, or champion/RECIPE, the best policy of the nights of a recipe; champion alone
if only one recipe has nights. A checkpoint is served with the settings of its run. Every field of the recipe section rollout can be set.
The endpoint listens on this machine only. Every request needs the token in AGENTGYM_ENGINE_TOKEN. If it is not set, the command
generates one and prints it. docs/serving.md describes clients and rewards. A world is served by `agentgym serve WORLD`."""


def main(arguments: list[str]) -> None:
    """Parse the command line and serve until a signal ends the process."""
    parser = Arguments(
        "agentgym serve",
        "MODEL [options]",
        "Serve a policy to OpenAI's and Anthropic's clients.",
        EXAMPLES,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="checkpoint folder, Hugging Face name, or champion"
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="DIR",
        help="write episodes with a reward to this folder, as trajectories",
    )
    parser.add_argument(
        "--verifier",
        metavar="MODULE:FUNCTION",
        help="function that returns the reward of an ended conversation",
    )
    parser.add_argument(
        "--port", type=port, default=8100, help="port on 127.0.0.1 (default: %(default)s)"
    )
    parser.add_argument(
        "--horizon",
        type=positive,
        default=100,
        metavar="N",
        help="most calls of an episode (default: %(default)s)",
    )
    parser.add_argument(
        "--success-score",
        type=float,
        default=1.0,
        metavar="X",
        help="smallest reward of a success (default: %(default)s)",
    )
    parser.add_argument(
        "--world",
        default="endpoint",
        metavar="NAME",
        help="name of the world in the recording (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the calls that give none (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of the weights (default: the checkpoint's)",
    )
    parsed, rest = parser.parse_known_args(arguments)
    with usage_errors(parser):
        source, rollout = served(parsed, parse_overrides(rest))
    set_engine_variables()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from tasks.endpoint.app import VerifierError
    from tasks.inference.engine import EngineError
    from tasks.rollout.resumable_writer import DifferentCollectionError
    from tasks.tracking.owner import RunBusyError

    try:
        serve(parsed, source, rollout)
    except ListenError as taken:
        raise SystemExit(f"{parser.prog}: {taken}") from None
    except (DifferentCollectionError, EngineError, OSError, RunBusyError, VerifierError) as problem:
        raise SystemExit(f"{type(problem).__name__}: {problem}") from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def served(parsed: argparse.Namespace, overrides: dict[str, Any]) -> tuple[Source, Rollout]:
    """Return the policy and its budgets, with the checkpoint's recipe as the default.

    Raises:
        RecipeError, ModelError: A value is wrong.
    """
    model = champion(parsed.model) if parsed.model.partition("/")[0] == CHAMPION else parsed.model
    given = {"kind": "model", "model": model}
    if foreign := [name for name in overrides if not name.startswith("rollout.")]:
        raise RecipeError(f"{foreign[0]}: is not a field of the recipe section rollout; remove it")
    recipe = trained_recipe(given)
    fields = {name.partition(".")[2]: value for name, value in overrides.items()}
    form = recipe.policy.turn_format() if recipe else {}
    if parsed.dtype:
        form["dtype"] = parsed.dtype
    try:
        source = Source.model_validate({**form, **given})
        rollout = Rollout.model_validate(
            {**(recipe.rollout.model_dump() if recipe else {}), **fields}
        )
    except ValidationError as problem:
        raise RecipeError(f"invalid values:\n{explain(problem)}", problem) from None
    return source, fit_source(source, rollout)


def champion(name: str) -> str:
    """Return the checkpoint of a champion by the record of its nights.

    Args:
        name: "champion/RECIPE", or "champion".

    Raises:
        ModelError: There is no champion, or several recipes have one.
    """
    from tasks.evaluation.nights import last_champion, read_nights

    nights = infra_settings().runs.absolute() / "nights"
    wanted = name.partition("/")[2]
    if wanted:
        folders = [nights / wanted]
    else:
        folders = [folder for folder in sorted(nights.glob("*")) if folder.is_dir()]
    found = {
        folder.name: best for folder in folders if (best := last_champion(read_nights(folder)[0]))
    }
    if len(found) > 1:
        raise ModelError(
            f"{name}: several recipes have a champion; give one of "
            f"{', '.join(f'{CHAMPION}/{each}' for each in found)}"
        )
    if not found:
        raise ModelError(
            f"{name}: {nights} has no champion; run agentgym nightly, or give a checkpoint"
        )
    return next(iter(found.values()))


def serve(parsed: argparse.Namespace, source: Source, rollout: Rollout) -> None:
    """Serve until a signal ends the process, then print what became of the episodes.

    Raises:
        DifferentCollectionError: The folder of the recording holds the episodes of another policy.
        EngineError: The engine could not start.
        OSError: The port is taken, or the model is not available.
        RunBusyError: Another endpoint records into the folder.
        VerifierError: The verifier cannot be imported.
    """
    import uvicorn

    from tasks.inference.token_guard import VARIABLE, share_token

    is_generated = not os.environ.get(VARIABLE)
    share_token()
    with ExitStack() as stack:
        listener = stack.enter_context(listen("127.0.0.1", parsed.port))
        endpoint = stack.enter_context(opened(parsed, source, rollout))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        token = os.environ[VARIABLE] if is_generated else f"${VARIABLE}"
        print(f"export OPENAI_BASE_URL={address}/v1 OPENAI_API_KEY={token}")
        print(f"export ANTHROPIC_BASE_URL={address} ANTHROPIC_API_KEY={token}", flush=True)
        server = uvicorn.Server(
            uvicorn.Config(
                endpoint.app, log_level="warning", access_log=False, timeout_graceful_shutdown=1
            )
        )
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            endpoint.episodes.drop_idle(everything=True)
            print(
                "Episodes: "
                + ", ".join(
                    f"{count} {name.replace('_', ' ')}"
                    for name, count in endpoint.episodes.counts.items()
                )
            )


@contextmanager
def opened(parsed: argparse.Namespace, source: Source, rollout: Rollout) -> Iterator[Endpoint]:
    """Start the engine and open the recording for the duration of the block. Raises as `serve`."""
    from flows.collection_session import check_same_weights
    from tasks.endpoint.app import Endpoint, ServedPolicy, load_verifier
    from tasks.endpoint.chat_tokens import ChatTokens
    from tasks.endpoint.recording import Recording
    from tasks.inference.engine_factory import local_engine
    from tasks.starter.gguf_model import hugging_face_model
    from tasks.tracking.owner import claimed

    assert source.model is not None
    infrastructure = infra_settings()
    verifier = load_verifier(parsed.verifier) if parsed.verifier else None
    with ExitStack() as stack:
        recording = None
        if parsed.record:
            stack.enter_context(
                claimed(
                    parsed.record,
                    "a recording",
                    "wait for its end, or choose another folder with --record",
                )
            )
            recording = Recording(
                parsed.record, {"model": source.model, "dtype": source.dtype, "world": parsed.world}
            )
            check_same_weights(parsed.record, source)
        model = hugging_face_model(source.model)
        engine = local_engine(
            rollout,
            source.dtype,
            model,
            gpu_memory_fraction=infrastructure.engine_memory_fraction or OWN_FRACTION,
            cpu_cache_gb=infrastructure.engine_cpu_cache_gb,
        )
        stack.callback(engine.close)
        from transformers import AutoTokenizer

        chat = ChatTokens(
            AutoTokenizer.from_pretrained(model), source.chat_template_kwargs, source.thinking
        )
        policy = ServedPolicy(
            name=source.label,
            engine=engine,
            chat=chat,
            temperature=rollout.temperature,
            answer_tokens=rollout.turn_tokens,
            horizon=parsed.horizon,
            success_score=parsed.success_score,
            environment=parsed.world,
            seed=parsed.seed,
        )
        yield Endpoint(policy, recording, verifier)
