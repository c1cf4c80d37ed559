"""What a training process holds at its fullest, traced by torch on tensors without contents: no weights, no GPU, any number of ranks.

The update is run for real on torch's fake tensors: the model of transformers, TRL's fused head, FSDP2 over a process group that
answers at once, AdamW. torch's `MemTracker` sees each storage come and go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from configs.experiment import Lora

FEW_TOKENS = 32
"""As many as the check of the engine's new weights scores of a prompt."""


@dataclass(frozen=True, slots=True)
class TracedUpdate:
    """What is traced.

    Attributes:
        processes: Of the trainer, in all.
        sharded: FSDP2, or everything whole on every process.
        rows: Trajectories of a micro-batch.
        tokens: Tokens of each, prompt and padding included.
        compute: Number type of the layers' computation.
        gradient_checkpointing: Whether activations are computed again.
        reference: Whether there is a reference model.
        lora: Corrections of low rank that are trained in place of the policy's weights.
        critic: Whether there is a critic.
    """

    processes: int
    sharded: bool
    rows: int
    tokens: int
    compute: torch.dtype
    gradient_checkpointing: bool
    reference: bool
    critic: bool
    lora: Lora | None = None


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Bytes of one process.

    Attributes:
        weights: Of the policy.
        gradients: Of the policy.
        optimiser: Of the policy.
        reference: Its weights.
        critic: Weights, gradients and optimiser of the critic.
        parameters: Of the policy, their number.
        activations: What the fullest moment holds besides: activations, gathered blocks, logits of a tile, temporaries.
        scoring: What scoring a few tokens holds besides the weights: gathered or cast blocks.
    """

    weights: int
    gradients: int
    optimiser: int
    reference: int
    critic: int
    parameters: int
    activations: int
    scoring: int

    @property
    def peak(self) -> int:
        """All together."""
        return self.weights + self.gradients + self.optimiser + self.reference + self.critic + self.activations


def trace(config: Any, update: TracedUpdate) -> TrainerMemory:
    """The memory of one optimiser update.

    Args:
        config: A transformers configuration; its size is all that is asked of the model.
        update: What is done.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=update.processes)
    try:
        mesh = init_device_mesh("cpu", (update.processes,))
        with FakeTensorMode():
            return _traced(config, update, mesh)
    finally:
        torch.distributed.destroy_process_group()


def _traced(config: Any, update: TracedUpdate, mesh: Any) -> TrainerMemory:
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import AutoModel, AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    from tasks.training.critic import ValueModel
    from tasks.training.lora import begin_lora, is_adapter, place_lora
    from tasks.training.model_loading import empty_model
    from tasks.training.sharding import shard

    def made(kind: Any, dtype: torch.dtype) -> Any:
        model = empty_model(kind, config, {"dtype": dtype})
        if update.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        return model

    models = {"policy": made(AutoModelForCausalLM, torch.float32 if update.lora is None else update.compute)}
    if update.lora is not None:
        with unset_fake_temporarily():  # peft moves what it places, which fake tensors refuse
            place_lora(models["policy"], update.lora)
        begin_lora(models["policy"], seed=0)
        if update.gradient_checkpointing:
            models["policy"].enable_input_require_grads()
    add_fused_lm_head(models["policy"], outputs=("log_probs", "entropy"))
    if update.reference:
        models["reference"] = made(AutoModelForCausalLM, update.compute).requires_grad_(False).eval()
        add_fused_lm_head(models["reference"])
    if update.critic:
        models["critic"] = ValueModel(made(AutoModel, torch.float32))
    count = sum(p.numel() for name, p in models["policy"].named_parameters() if not is_adapter(name))
    if update.sharded:
        for model in models.values():
            shard(model, update.compute, mesh)
    trained = {name: [p for p in model.parameters() if p.requires_grad] for name, model in models.items() if name != "reference"}
    optimisers = {name: torch.optim.AdamW(parameters, lr=1e-6) for name, parameters in trained.items()}
    held = {name: _bytes(model.parameters()) for name, model in models.items()}

    ids = torch.zeros(update.rows, update.tokens, dtype=torch.long)

    def tracker() -> Any:
        made = MemTracker()
        for hook in ("_pre_fw_hook", "_post_fw_hook", "_pre_bw_hook", "_post_bw_hook"):
            setattr(made, hook, lambda *_: None)  # they keep a record for each module, which frozen parameters break
        states = (value for optimiser in optimisers.values() for state in optimiser.state.values() for value in state.values())
        made.track_external(*(p for model in models.values() for p in model.parameters()), *states)
        return made

    def scored(name: str, ids: torch.Tensor = ids) -> Any:
        mask = torch.ones_like(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=update.compute == torch.bfloat16):
            if name == "critic":
                return models[name](ids, mask)
            return models[name](input_ids=ids, attention_mask=mask, labels=ids, fused_lm_head=True).log_probs

    def learn() -> None:
        for name in optimisers:
            scored(name).sum().backward()
        for name, optimiser in optimisers.items():
            torch.nn.utils.clip_grad_norm_(trained[name], 1.0)
            optimiser.step()
            optimiser.zero_grad()

    with tracker() as scoring, torch.no_grad():
        scored("policy", ids[:1, :FEW_TOKENS])
    # The first update makes the optimiser's state. It is not tracked: where DTensor meets an operation for the first time it tries the
    # shapes of the result with whole tensors, which are fake in a real run too, but here look like the rest.
    learn()
    with tracker() as updating:
        if update.reference:
            with torch.no_grad():
                scored("reference")
        learn()
    peak = _peak(updating)
    own, gradients = held["policy"], _bytes(trained["policy"])
    buckets = gradients if update.processes > 1 and not update.sharded else 0  # of DDP, which the fake group does without
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
    """The most bytes that were held at once while it tracked."""
    return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


def _bytes(parameters: Any) -> int:
    """Of this process's part."""
    from torch.distributed.tensor import DTensor

    return sum((p.to_local() if isinstance(p, DTensor) else p).untyped_storage().nbytes() for p in parameters)
