"""About how long a training step takes on GPUs: an estimate from its tokens, the model's parameters and what such a GPU can do at most.

No torch here. Nothing of it was measured; what is supposed are the constants below, and ASSUMPTIONS says it in words.
"""

from __future__ import annotations

from dataclasses import dataclass

from configs.experiment import Experiment
from tasks.training.algorithms.policy_gradient import PolicyGradient

UTILISATION = 0.35
"""Share of a GPU's peak that large matrix products reach, in the update and while prompts are read."""
BANDWIDTH_SHARE = 0.6
"""Share of its memory bandwidth that decoding reaches."""
ASSUMPTIONS = f"""\
An estimate: {UTILISATION:.0%} of the GPU's peak in the update and in prompts, {BANDWIDTH_SHARE:.0%} of its memory bandwidth while decoding,
all episodes of the mean length, a dense model. Not in it: attention's own products, the environments' answers, stragglers, weight sync,
checkpoints, evaluations."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a kind of GPU can do, by its maker's data sheet.

    Attributes:
        operations: Dense bfloat16 operations a second.
        bandwidth: Bytes a second of its memory.
        memory: In GB.
    """

    operations: float
    bandwidth: float
    memory: float


GPUS = {"A100": Gpu(312e12, 2.04e12, 80), "H100": Gpu(989e12, 3.35e12, 80), "H200": Gpu(989e12, 4.8e12, 141)}
"""By name, as SXM modules."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What a training step plays and learns from.

    Attributes:
        episodes: Their number.
        written: Tokens that the policy writes in all of them.
        tokens: All their tokens, prompts and observations too.
    """

    episodes: float
    written: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Engines:
    """The vLLM engines that generate, each on a GPU of its own or on its share of one.

    Attributes:
        number: How many.
        max_num_seqs: Most sequences that one computes at once.
        kv_tokens: Tokens that the KV cache of one holds.
        kv_bytes: Of a token in it.
        weight_bytes: Of the weights of one.
    """

    number: int
    max_num_seqs: int
    kv_tokens: int
    kv_bytes: float
    weight_bytes: float


def operations_per_token(experiment: Experiment) -> int:
    """Floating-point operations of an update for each token and parameter.

    A forward pass takes 2, its backward pass 4 (arXiv 2001.08361, section 2.1): 2 for the gradients of the activations, and 2 for those of
    the weights, which LoRA spares. Gradient checkpointing adds a forward pass, and so do old and reference log-probabilities and values.
    """
    algorithm, policy = experiment.algorithm, experiment.policy
    assert isinstance(algorithm, PolicyGradient)
    critic = algorithm.value_function() is not None
    forward = 2 * (2 if policy.gradient_checkpointing else 1)
    learned = forward + (4 if policy.lora is None else 2)
    if critic:
        learned += forward + 4
    scored = 2 * ((algorithm.importance_correction == "truncated") + (algorithm.kl_coefficient > 0) + critic)
    return algorithm.epochs * learned + scored


def update_seconds(step: StepTokens, parameters: int, per_token: int, gpus: int, gpu: Gpu) -> float:
    """Wall time of a step's update, shared out evenly over the trainer's GPUs.

    Args:
        step: What it learns from.
        parameters: Of the policy.
        per_token: See `operations_per_token`.
        gpus: Processes of the trainer, with a GPU each.
        gpu: Of which kind.
    """
    return step.tokens * parameters * per_token / (gpus * gpu.operations * UTILISATION)


def rollout_seconds(step: StepTokens, parameters: int, engines: Engines, gpu: Gpu) -> float:
    """Wall time of generating a step's episodes, shared out evenly over the engines.

    Every token of an episode that the policy does not write is read once (the prefix cache keeps it). To write one token in each of the
    sequences that are computed at once, an engine reads its weights and the KV cache of all of them, half as long as an episode is on
    average, or computes 2 operations for each of them and parameter, whichever takes longer.

    Args:
        step: What is played.
        parameters: Of the policy.
        engines: What generates.
        gpu: The kind of GPU of each.
    """
    episodes, length = step.episodes / engines.number, step.tokens / step.episodes
    at_once = max(1.0, min(episodes, engines.max_num_seqs, engines.kv_tokens / length))
    reading = (engines.weight_bytes + at_once * length / 2 * engines.kv_bytes) / (gpu.bandwidth * BANDWIDTH_SHARE)
    operations = gpu.operations * UTILISATION
    written, read = step.written / engines.number, (step.tokens - step.written) / engines.number
    return written / at_once * max(reading, 2 * parameters * at_once / operations) + 2 * parameters * read / operations


def in_words(low: float, high: float) -> str:
    """A range of seconds, each end in the unit that suits it, e.g. "30 s to 15 min"."""
    (least, unit), (most, larger) = _amount(low), _amount(high)
    if unit != larger:
        return f"{least} {unit} to {most} {larger}"
    return f"{most} {larger}" if least == most else f"{least} to {most} {larger}"


def _amount(seconds: float) -> tuple[str, str]:
    units = ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s"))
    size, unit = next((size, unit) for size, unit in units if seconds >= 2 * size or size == 1)
    return f"{seconds / size:.2g}" if seconds < 10 * size else f"{seconds / size:.0f}", unit
