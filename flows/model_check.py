"""Check a language model before anything is started for it, and fit the token budgets to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from configs.collection import Source
from configs.experiment import Experiment, Policy, Rollout, TurnFormat
from configs.model_folder import ModelError
from configs.recipe import RecipeError
from tasks.provision.accelerators import visible_gpus

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes that vLLM supports on a CPU. A test compares them with vLLM's own."""

CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer_config.json"
CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""Names of the context length in model configurations."""

EXTENDED_BY_FACTOR = ("yarn", "linear", "dynamic")
"""Kinds of rotary scaling whose factor multiplies the original context length."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes from a model's configuration.

    Attributes:
        context_length: Maximum tokens of a sequence, or None if the configuration sets no limit.
        head_size: Width of an attention head, or None if unknown.
        vocabulary: Rows of the embedding, or None if unknown.
    """

    context_length: int | None
    head_size: int | None
    vocabulary: int | None


def fit_experiment(experiment: Experiment, *, needs_tokenizer: bool = True) -> Experiment:
    """Return the recipe with its token budgets fitted to the model, after checking the model.

    Args:
        needs_tokenizer: False checks the tokenizer only if it is on this machine.

    Raises:
        RecipeError: The model cannot be used, or a budget exceeds its context length.
    """
    policy = experiment.policy
    if policy.model == "starter":
        return experiment
    rollout = fit_rollout("policy.model", policy.model, policy, experiment.rollout, needs_tokenizer)
    return experiment.model_copy(update={"rollout": rollout})


def fit_source(source: Source, rollout: Rollout) -> Rollout:
    """Return the budgets fitted to the playing model, after checking the model and the tokenizer.

    Raises:
        RecipeError: The model or the tokenizer cannot be used, or a budget exceeds the context
            length.
    """
    if source.tokenizer is not None:
        # Template variables go to the endpoint. The learner's tokenizer may have another template.
        if source.kind == "openai":
            form = source.model_copy(update={"chat_template_kwargs": {}})
        else:
            form = source
        check_tokenizer("tokenizer", source.tokenizer, form)
    if source.kind != "model" or source.model is None:
        return rollout
    return fit_rollout("model", source.model, source, rollout)


def fit_rollout(
    field: str, model: str, form: Policy | Source, rollout: Rollout, needs_tokenizer: bool = True
) -> Rollout:
    """Check a model and return the rollout settings with budgets that fit its context.

    A budget that was not given follows from the model: `trajectory_tokens` is at most its context
    length, `turn_tokens` at most a quarter of that.

    Args:
        field: The option or recipe field of the model, for messages.
        model: Hugging Face name or folder.
        form: Action format, instruction and conversation start.
        rollout: Engine and budgets.
        needs_tokenizer: See `fit_experiment`.

    Raises:
        RecipeError: See `fit_experiment`.
    """
    model = loadable(field, model)
    shape = model_shape(field, model)
    on_cpu = rollout.engine == "vllm" and not visible_gpus()
    if on_cpu and shape.head_size is not None and shape.head_size not in CPU_HEAD_SIZES:
        raise RecipeError(
            f"{field}: {model} has attention heads of size {shape.head_size}, but vLLM on a CPU "
            f"supports only {', '.join(map(str, CPU_HEAD_SIZES))}. Set rollout.engine to "
            "transformers, or choose another model."
        )
    checks_tokenizer = needs_tokenizer or local_file(model, TOKENIZER_FILE) is not None
    tokens = check_tokenizer(field, model, form) if checks_tokenizer else 0
    if shape.vocabulary is not None and tokens > shape.vocabulary:
        raise RecipeError(
            f"{field}: the tokenizer of {model} has {tokens} tokens, but the model's embedding has "
            f"{shape.vocabulary} rows. Resize the embedding, or use the model's own tokenizer."
        )
    if shape.context_length is None:
        return rollout
    return _within_context(field, model, shape.context_length, rollout)


def _within_context(field: str, model: str, context_length: int, rollout: Rollout) -> Rollout:
    given = rollout.model_fields_set
    trajectory_tokens = rollout.trajectory_tokens
    if trajectory_tokens > context_length:
        if "trajectory_tokens" in given:
            raise RecipeError(
                f"rollout.trajectory_tokens: {trajectory_tokens} exceeds the context of {model} "
                f"({field}), which is {context_length} tokens. Set it to at most {context_length}."
            )
        trajectory_tokens = context_length
    turn_tokens = rollout.turn_tokens
    if "turn_tokens" not in given:
        turn_tokens = min(turn_tokens, max(1, trajectory_tokens // 4))
    if turn_tokens >= trajectory_tokens:
        raise RecipeError(
            f"rollout.turn_tokens: {turn_tokens} leaves no room for a prompt in "
            f"{trajectory_tokens} tokens "
            f"(rollout.trajectory_tokens or the context of {model}). Lower it."
        )
    fitted = {"trajectory_tokens": trajectory_tokens, "turn_tokens": turn_tokens}
    changed = {name: value for name, value in fitted.items() if value != getattr(rollout, name)}
    return rollout.model_copy(update=changed)


def loadable(field: str, model: str) -> str:
    """Return what transformers loads for a model (see `hugging_face_model`).

    Raises:
        RecipeError: The GGUF cannot be used. The message begins with `field`.
    """
    from tasks.starter.gguf_model import hugging_face_model

    try:
        return hugging_face_model(model)
    except ModelError as problem:
        raise RecipeError(f"{field}: {problem}") from None


@cache
def model_shape(field: str, model: str) -> ModelShape:
    """Read the configuration of a model from its folder or from the hub.

    Raises:
        RecipeError: There is no readable configuration.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        path = local_file(model, CONFIG_FILE) or Path(hf_hub_download(model, CONFIG_FILE))
        config = json.loads(path.read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        return ModelShape(_context_length(config), _head_size(config), config.get("vocab_size"))
    except LocalEntryNotFoundError:
        raise RecipeError(
            f"{field}: {model!r} is not on this machine, and the Hugging Face hub does not answer; "
            "connect to the network once to download it, or give a folder with a config.json"
        ) from None
    except HFValidationError:
        raise RecipeError(
            f"{field}: there is no folder {model!r}, and a model on the Hugging Face hub has a name "
            "like Qwen/Qwen2.5-3B-Instruct"
        ) from None
    except (OSError, ValueError, AttributeError) as problem:
        raise RecipeError(
            f"{field}: the configuration of {model!r} cannot be read: {problem}. Give a folder "
            "with a config.json, or a model's "
            "name on the Hugging Face Hub, e.g. Qwen/Qwen2.5-3B-Instruct."
        ) from None


def local_file(model: str, name: str) -> Path | None:
    """Return a file of a model's folder, or of its download in the local cache.

    None if a model of the hub lacks it there. A file of a folder need not exist.

    Raises:
        ValueError: `model` is neither a folder nor a possible name on the hub.
    """
    from huggingface_hub import try_to_load_from_cache

    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder / name
    found = try_to_load_from_cache(model, name)
    return Path(found) if isinstance(found, str) else None


def check_tokenizer(field: str, name: str, form: Policy | Source) -> int:
    """Check a tokenizer and its chat template, and return its number of token ids.

    Raises:
        RecipeError: It cannot be loaded, or its chat template does not support several turns.
    """
    name = loadable(field, name)
    request = {
        "tokenizer": str(Path(name).expanduser()),
        "form": form.model_dump(mode="json", include=set(TurnFormat.model_fields)),
    }
    # Each file that the hub is asked for takes half a minute if it does not answer.
    answer = _checked_chat_format(json.dumps(request), offline=_is_downloaded(name))
    if "error" in answer and not Path(name).expanduser().is_dir():
        answer = _checked_chat_format(json.dumps(request), offline=False)
    if "error" in answer:
        raise RecipeError(f"{field}: {answer['error']}")
    return int(answer["tokens"])


@cache
def _checked_chat_format(request: str, *, offline: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "tasks.agents.chat_format_check", request]
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
    if offline:
        environment["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        return {"error": f"the check of the tokenizer failed: {done.stderr.strip()[-500:]}"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _is_downloaded(name: str) -> bool:
    try:
        return local_file(name, TOKENIZER_FILE) is not None
    except ValueError:
        return False


def _context_length(config: dict[str, Any]) -> int | None:
    length = next((int(config[name]) for name in CONTEXT_FIELDS if config.get(name)), None)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if length is None or kind not in EXTENDED_BY_FACTOR:
        return length
    original = int(scaling.get("original_max_position_embeddings") or length)
    return max(length, int(original * float(scaling.get("factor", 1.0))))


def _head_size(config: dict[str, Any]) -> int | None:
    if config.get("head_dim"):
        return int(config["head_dim"])
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return int(width) // int(heads) if width and heads else None
