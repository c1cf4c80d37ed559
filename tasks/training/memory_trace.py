"""Trace the peak memory of a trainer process with torch's fake tensors.

The trace needs no weights and no GPU, and supports any number of ranks. It runs the real update on
fake tensors: the transformers model, TRL's fused head, FSDP2 over a fake process group, and AdamW.
torch's `MemTracker` records every allocation and release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from configs.experiment import Lora

FEW_TOKENS = 32
"""Number of prompt tokens that the weight-sync check scores."""


@dataclass(frozen=True, slots=True)
class TracedUpdate:
    """The settings of a traced update.

    Attributes:
        processes: Number of trainer ranks.
        sharded: Whether FSDP2 shards the models. If not, every rank holds full copies.
        rows: Trajectories in a micro-batch.
        tokens: Tokens of each trajectory, including prompt and padding.
        compute: Compute dtype of the layers.
        gradient_checkpointing: Share of the blocks whose activations are recomputed.
        reference: Name or folder of the reference model. None: there is none.
        critic: Whether there is a critic.
        lora: LoRA settings. None means full fine-tuning.
    """

    processes: int
    sharded: bool
    rows: int
    tokens: int
    compute: torch.dtype
    gradient_checkpointing: bool | float
    reference: str | None
    critic: bool
    lora: Lora | None = None


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Memory of one rank, in bytes, except `parameters`.

    Attributes:
        weights: Policy weights.
        gradients: Policy gradients.
        optimiser: Optimiser state of the policy.
        reference: Weights of the reference model.
        critic: Weights, gradients and optimiser state of the critic.
        parameters: Number of policy parameters.
        activations: Everything else at the peak: activations, gathered blocks, logits of a tile,
            temporaries.
        scoring: Memory beyond the weights while scoring a few tokens: gathered or cast blocks.
    """

    weights: int
    gradients: int
    optimiser: int
    reference: int
    critic: int
    parameters: int
    activations: int
    scoring: int


def trace(config: Any, update: TracedUpdate) -> TrainerMemory:
    """Trace the memory of one optimiser update.

    Args:
        config: A transformers configuration. Only the size of the model matters.
        update: The settings of the update.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=update.processes
    )
    try:
        mesh = init_device_mesh("cpu", (update.processes,))
        with FakeTensorMode():
            return _traced(config, update, mesh)
    finally:
        torch.distributed.destroy_process_group()


def _traced(config: Any, update: TracedUpdate, mesh: Any) -> TrainerMemory:
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    from tasks.inference.adapter import place_adapter
    from tasks.training.critic import ValueModel
    from tasks.training.lora import begin_lora, is_adapter
    from tasks.training.model_loading import empty_model
    from tasks.training.recomputation import recompute_activations
    from tasks.training.sharding import shard

    def made(kind: Any, dtype: torch.dtype, config: Any = config) -> Any:
        model = empty_model(kind, config, {"dtype": dtype})
        recompute_activations(model, update.gradient_checkpointing)
        return model

    models = {
        "policy": made(
            AutoModelForCausalLM, torch.float32 if update.lora is None else update.compute
        )
    }
    if update.lora is not None:
        with unset_fake_temporarily():  # fake tensors do not support the moves of peft
            place_adapter(models["policy"], update.lora)
        begin_lora(models["policy"], seed=0)
        if update.gradient_checkpointing:
            models["policy"].enable_input_require_grads()
    add_fused_lm_head(models["policy"], outputs=("log_probs", "entropy"))
    if update.reference:
        reference = AutoConfig.from_pretrained(update.reference)
        models["reference"] = (
            made(AutoModelForCausalLM, update.compute, reference).requires_grad_(False).eval()
        )
        add_fused_lm_head(models["reference"])
    if update.critic:
        models["critic"] = ValueModel(made(AutoModel, torch.float32))
    count = sum(
        p.numel() for name, p in models["policy"].named_parameters() if not is_adapter(name)
    )
    if update.sharded:
        for model in models.values():
            shard(model, update.compute, mesh)
    trained = {
        name: [p for p in model.parameters() if p.requires_grad]
        for name, model in models.items()
        if name != "reference"
    }
    optimisers = {
        name: torch.optim.AdamW(parameters, lr=1e-6, fused=True)
        for name, parameters in trained.items()
    }
    held = {name: _bytes(model.parameters()) for name, model in models.items()}

    ids = torch.zeros(update.rows, update.tokens, dtype=torch.long)

    def tracker() -> Any:
        made = MemTracker()
        for hook in ("_pre_fw_hook", "_post_fw_hook", "_pre_bw_hook", "_post_bw_hook"):
            setattr(made, hook, lambda *_: None)  # per-module records fail on frozen parameters
        states = (
            value
            for optimiser in optimisers.values()
            for state in optimiser.state.values()
            for value in state.values()
        )
        made.track_external(*(p for model in models.values() for p in model.parameters()), *states)
        return made

    def scored(name: str, ids: torch.Tensor = ids) -> Any:
        mask = torch.ones_like(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=update.compute == torch.bfloat16):
            if name == "critic":
                return models[name](input_ids=ids, attention_mask=mask)
            return models[name](
                input_ids=ids, attention_mask=mask, labels=ids, fused_lm_head=True
            ).log_probs

    def learn() -> None:
        for name in optimisers:
            scored(name).sum().backward()
        for name, optimiser in optimisers.items():
            torch.nn.utils.clip_grad_norm_(trained[name], 1.0)
            optimiser.step()
            optimiser.zero_grad()

    with tracker() as scoring, torch.no_grad():
        scored("policy", ids[:1, :FEW_TOKENS])
    # The first update allocates the optimiser state and is not tracked. On the first call of an
    # operation, DTensor propagates shapes
    # with full fake tensors. They are free in a real run, but the tracker would count them here.
    learn()
    with tracker() as updating:
        if update.reference:
            with torch.no_grad():
                scored("reference")
        learn()
    peak = _peak(updating)
    own, gradients = held["policy"], _bytes(trained["policy"])
    # DDP's buckets, absent from the fake group.
    buckets = gradients if update.processes > 1 and not update.sharded else 0
    known = own + 3 * gradients + held.get("reference", 0) + 4 * held.get("critic", 0)
    return TrainerMemory(
        weights=own,
        gradients=gradients,
        optimiser=2 * gradients,
        reference=held.get("reference", 0),
        critic=4 * held.get("critic", 0),
        parameters=count,
        activations=peak - known + buckets,
        scoring=_peak(scoring) - sum(held.values()),
    )


def _peak(tracker: Any) -> int:
    """Return the peak of the tracked memory, in bytes."""
    return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


def _bytes(parameters: Any) -> int:
    """Return the local bytes of some parameters."""
    from torch.distributed.tensor import DTensor

    return sum(
        (p.to_local() if isinstance(p, DTensor) else p).untyped_storage().nbytes()
        for p in parameters
    )
