"""Estimate the duration of a training step on GPUs or CPU cores.

The inputs are its tokens, the model's parameters and the speed of the GPU or core. Imports no
torch. The constants for GPUs are assumptions, which ASSUMPTIONS describes to the user. Those for
cores were measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from configs.experiment import Experiment
from configs.policy_gradient import PolicyGradient
from tasks.tracking.step_metrics_file import Steps
from tasks.training.processor import multiplies_bfloat16

UTILISATION = 0.35
"""Fraction of the GPU's peak reached by large matrix products, in the update and in prefill."""
BANDWIDTH_SHARE = 0.6
"""Fraction of the GPU's memory bandwidth reached in decoding."""
ASSUMPTIONS = f"""\
This is an estimate. It assumes {UTILISATION:.0%} of the GPU's peak in updates and prefill, {BANDWIDTH_SHARE:.0%} of its memory
bandwidth in decoding, episodes of mean length and a dense model. It excludes attention scores, environment latency, stragglers,
weight sync, checkpoints and evaluations."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak performance of a GPU model, from its data sheet.

    Attributes:
        operations: Dense bfloat16 operations per second.
        bandwidth: Memory bandwidth, in bytes per second.
        memory: Memory, in GB.
    """

    operations: float
    bandwidth: float
    memory: float


GPUS = {
    "A100": Gpu(312e12, 2.04e12, 80),
    "H100": Gpu(989e12, 3.35e12, 80),
    "H200": Gpu(989e12, 4.8e12, 141),
}
"""GPU models by name, as SXM modules."""


def gpu_model(name: str) -> str | None:
    """Return the key of `GPUS` in a name such as "NVIDIA H200". None for any other GPU."""
    return next((model for model in GPUS if model in name), None)


@dataclass(frozen=True, slots=True)
class Core:
    """Measured speed of a CPU core with SmolLM2-135M in bfloat16, per CPU second.

    Attributes:
        name: What distinguishes the core, for people.
        update: Operations per second in forward and backward passes.
        reading: Operations per second of the engine in prefill.
        writing: Operations per second of the engine in decoding 32 sequences at once.
    """

    name: str
    update: float
    reading: float
    writing: float


AMX = Core("AMX", update=250e9, reading=490e9, writing=74e9)
"""A core of an Intel Xeon."""
AVX2 = Core("AVX2", update=80e9, reading=48e9, writing=22e9)
"""A core of an AMD EPYC (Zen 3), which computes in float32.

An update of cloning reaches 54e9 operations per second. One of RL skips groups without variance.
"""


def this_core() -> Core:
    """Return the measured core that is most like those of this machine."""
    return AMX if multiplies_bfloat16() else AVX2


def cpu_assumptions(core: Core) -> str:
    """Return what the estimate for CPU cores assumes and leaves out."""
    return (
        f"This is an estimate for quiet cores with {core.name}, from measurements with SmolLM2-135M in bfloat16. It excludes\n"
        "environment latency, weight sync, checkpoints and evaluations."
    )


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The size of a training step.

    Attributes:
        written: Tokens written by the policy, over all episodes.
        tokens: All tokens, including prompts and observations.
    """

    episodes: float
    written: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Engines:
    """The vLLM engines that generate, each on a separate GPU or on a fraction of one.

    Attributes:
        max_num_seqs: Maximum number of concurrent sequences per engine.
        kv_tokens: KV cache capacity per engine, in tokens.
        kv_bytes: KV cache bytes per token.
        weight_bytes: Bytes of the weights per engine.
    """

    number: int
    max_num_seqs: int
    kv_tokens: int
    kv_bytes: float
    weight_bytes: float


def operations_per_token(experiment: Experiment) -> float:
    """Return the floating-point operations of an update per token and parameter.

    A forward pass takes 2, its backward pass 4 (arXiv 2001.08361, section 2.1). Of these 4, 2 are
    for the gradients of the activations and 2 for those of the weights, which LoRA skips. Gradient
    checkpointing adds a forward pass, or its share of one. Reference log-probabilities and values
    each add one as well. So do log-probabilities before the update. They are compared with the
    engine's, and are the old ones of an importance correction.
    """
    algorithm, policy, rollout = experiment.algorithm, experiment.policy, experiment.rollout
    assert isinstance(algorithm, PolicyGradient)
    critic = algorithm.value_function() is not None
    forward = 2 * (1 + policy.gradient_checkpointing)
    learned = forward + (4 if policy.lora is None else 2)
    if critic:
        learned += forward + 4
    before = algorithm.importance_correction != "behaviour" or not rollout.max_off_policy_steps
    scored = 2 * (before + (algorithm.kl_coefficient > 0) + critic)
    return algorithm.epochs * learned + scored


def update_seconds(
    step: StepTokens, parameters: int, per_token: float, gpus: int, gpu: Gpu
) -> float:
    """Return the wall time of a step's update, split evenly across the trainer's GPUs.

    Args:
        step: Size of the step.
        parameters: Number of policy parameters.
        per_token: Result of `operations_per_token`.
        gpus: Number of trainer processes, each with one GPU.
        gpu: GPU model.
    """
    return step.tokens * parameters * per_token / (gpus * gpu.operations * UTILISATION)


def rollout_seconds(step: StepTokens, parameters: int, engines: Engines, gpu: Gpu) -> float:
    """Return the wall time of generating a step's episodes, split evenly across the engines.

    Tokens not written by the policy are prefilled once, since the prefix cache keeps them. A
    decoding step writes one token in each concurrent sequence. It either reads the weights and the
    KV cache of all sequences, or computes 2 operations per sequence and parameter, whichever takes
    longer. The mean length of a sequence in the KV cache is half of the mean episode length.

    Args:
        step: Size of the step.
        parameters: Number of policy parameters.
        engines: The engines that generate.
        gpu: GPU model of each engine.
    """
    episodes, length = step.episodes / engines.number, step.tokens / step.episodes
    at_once = max(1.0, min(episodes, engines.max_num_seqs, engines.kv_tokens / length))
    reading = (engines.weight_bytes + at_once * length / 2 * engines.kv_bytes) / (
        gpu.bandwidth * BANDWIDTH_SHARE
    )
    operations = gpu.operations * UTILISATION
    written, read = step.written / engines.number, (step.tokens - step.written) / engines.number
    return (
        written / at_once * max(reading, 2 * parameters * at_once / operations)
        + 2 * parameters * read / operations
    )


def cpu_seconds(
    step: StepTokens, parameters: int, per_token: float, cores: int, core: Core
) -> tuple[float, float]:
    """Return the wall time of a step's rollout and of its update on a CPU.

    Args:
        step: Size of the step.
        parameters: Number of policy parameters.
        per_token: Result of `operations_per_token`.
        core: Speed of a core.
    """
    read = step.tokens - step.written
    rollout = 2 * parameters * (read / core.reading + step.written / core.writing)
    update = step.tokens * parameters * per_token / core.update
    return rollout / cores, update / cores


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """The speed of a run's training steps.

    Attributes:
        share: Mean turns of an episode as a fraction of the horizon.
        rollout: Seconds of collection per turn of an episode.
        update: Seconds of update per turn of an episode.
    """

    share: float
    rollout: float
    update: float

    def seconds(self, episodes: float, horizon: float) -> tuple[float, float]:
        """Return the wall time of the rollout and of the update of a step at some horizon."""
        turns = episodes * self.share * horizon
        return turns * self.rollout, turns * self.update


def measured_speed(steps: Steps) -> MeasuredSpeed:
    """Return the speed of a run's steps, without the first of several, which warms up.

    The share of the horizon, and the time of a turn, are taken to stay the same at other horizons.

    Raises:
        ValueError: No step has the metrics of a rollout with turns.
    """
    numbers = sorted(steps)
    chosen = [steps[n] for n in numbers[1:] or numbers]
    try:
        turns = sum(step["rollout/episodes"] * step["rollout/turns"] for step in chosen)
        limits = sum(step["rollout/episodes"] * step["rollout/horizon"] for step in chosen)
        return MeasuredSpeed(
            turns / limits,
            sum(step["rollout/seconds"] for step in chosen) / turns,
            sum(step["update/seconds"] for step in chosen) / turns,
        )
    except (KeyError, ZeroDivisionError) as missing:
        raise ValueError("no training step with rollouts was measured") from missing


def in_words(low: float, high: float) -> str:
    """Format a range of seconds with suitable units, e.g. "30 s to 15 min"."""
    (least, unit), (most, larger) = _amount(low), _amount(high)
    if unit != larger:
        return f"{least} {unit} to {most} {larger}"
    return f"{most} {larger}" if least == most else f"{least} to {most} {larger}"


def _amount(seconds: float) -> tuple[str, str]:
    units = ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s"))
    size, unit = next((size, unit) for size, unit in units if seconds >= 2 * size or size == 1)
    return f"{seconds / size:.2g}" if seconds < 10 * size else f"{seconds / size:.0f}", unit
