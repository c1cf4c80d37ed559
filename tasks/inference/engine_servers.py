"""The vLLM servers of a run, on this machine or on nodes of a Ray cluster."""

from __future__ import annotations

from configs.experiment import Experiment
from configs.infrastructure import InfraSettings, launch_of
from configs.placement import OWN_FRACTION
from tasks.inference.adapter import adapters_at_once, max_adapter_rank
from tasks.inference.launch_command import command
from tasks.inference.token_guard import share_token, token_variables
from tasks.provision.local import ON_LOOPBACK
from tasks.provision.replica_set import Replicas, local_replicas
from tasks.training.local_trainer import placement_of


def engine_replicas(experiment: Experiment, infrastructure: InfraSettings, policy: str) -> Replicas:
    """Return the servers that generate for a run, for use in a `with` block.

    They reject requests without the token of this process.

    Args:
        infrastructure: Number of servers, and their GPUs or their cluster.
        policy: Hugging Face name or folder. On a cluster every node must have it.
    """
    rollout, seconds = experiment.rollout, infrastructure.trainer_start_seconds
    share_token()

    def launched(gpu: str, gpus: int | None) -> list[str]:
        return command(
            policy,
            context_length=rollout.trajectory_tokens,
            max_num_seqs=rollout.max_num_seqs or rollout.max_concurrent_episodes,
            dtype=experiment.policy.dtype,
            gpu_memory_fraction=infrastructure.engine_memory_fraction or OWN_FRACTION,
            cpu_cache_gb=infrastructure.engine_cpu_cache_gb,
            gpu=gpu,
            gpus=gpus,
            weights=infrastructure.engine_weights,
            max_lora_rank=max_adapter_rank(experiment.policy.lora)
            if experiment.policy.lora
            else None,
            max_loras=adapters_at_once(rollout),
        )

    if infrastructure.ray_address is None:
        placed = placement_of(infrastructure).servers
        # Without GPUs.
        gpus = [server.gpu for server in placed] or [""] * infrastructure.engine_servers
        commands = [launched(gpu, None) for gpu in gpus]
        return local_replicas(
            "vllm",
            commands,
            environment=ON_LOOPBACK,
            host=launch_of(infrastructure).first_node,
            start_deadline_s=seconds,
        )
    from tasks.provision.ray_cluster import connected
    from tasks.provision.ray_servers import RayReplicas

    needs = launch_of(infrastructure).engine
    gpus_each = connected(infrastructure).gpus(needs)
    commands = [launched("", gpus_each)] * infrastructure.engine_servers
    return RayReplicas(
        infrastructure,
        "vllm",
        commands,
        needs,
        environment=token_variables(),
        start_deadline_s=seconds,
    )
