"""The GPUs of a run: which trainer rank and which vLLM engine runs on which GPU of this machine.

Every GPU has at most one rank and one engine. An engine shares its GPU only with the rank whose
process it is in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from configs.config_model import ConfigError
from configs.infrastructure import InfraSettings, local_engine_servers

SHARED_FRACTION = 0.45
"""vLLM's fraction of a GPU that a trainer rank uses too."""
OWN_FRACTION = 0.9
"""vLLM's fraction of a GPU that no trainer rank uses."""


class PlacementError(ConfigError):
    """The settings place two processes on one GPU, or need more GPUs than there are."""


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """An engine and its GPU.

    Attributes:
        gpu: Name of the GPU, as in CUDA_VISIBLE_DEVICES.
        rank: Rank whose process holds the engine. None for a vLLM server.
        memory_fraction: Fraction of the GPU's memory for vLLM, 0 to 1.
    """

    gpu: str
    rank: int | None
    memory_fraction: float


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs of a run on one machine. All sequences are empty on a machine without GPUs.

    Attributes:
        ranks: GPU of each trainer rank.
        engines: The engines. Empty if all of them run elsewhere (AGENTGYM_ENGINE_URLS or Ray).
    """

    ranks: tuple[str, ...]
    engines: tuple[EnginePlace, ...]

    @property
    def servers(self) -> tuple[EnginePlace, ...]:
        """The engines that are vLLM servers."""
        return tuple(engine for engine in self.engines if engine.rank is None)


NO_GPUS = Placement((), ())
"""The placement of a run on a machine without GPUs."""


def place(settings: InfraSettings, processes: int, gpus: Sequence[str]) -> Placement:
    """Compute the placement of a run.

    Ranks take the first GPUs. Servers take those of `engine_gpus`, otherwise the next GPUs.

    Args:
        settings: Numbers of servers, their GPUs and their memory.
        processes: Trainer processes on this machine.
        gpus: Names of the machine's GPUs, as in CUDA_VISIBLE_DEVICES. Empty on a CPU.

    Raises:
        PlacementError: Two of them claim one GPU, or there are too few GPUs.
    """
    if not gpus:
        return NO_GPUS
    if processes > len(gpus):
        raise PlacementError(
            f"AGENTGYM_TRAINER_PROCESSES: {processes} trainer processes need one GPU each, but this "
            f"machine has {len(gpus)}; set it to at most {len(gpus)}"
        )
    ranks, fraction = tuple(gpus[:processes]), settings.engine_memory_fraction
    wanted = local_engine_servers(settings)
    if settings.engine_servers > wanted or settings.engine_urls:
        return Placement(ranks, ())
    if not wanted:
        return Placement(
            ranks,
            tuple(
                EnginePlace(gpu, rank, fraction or SHARED_FRACTION)
                for rank, gpu in enumerate(ranks)
            ),
        )
    free = gpus[processes:]
    servers = settings.engine_gpus or free[: settings.engine_servers]
    if len(servers) < settings.engine_servers:
        raise PlacementError(
            f"AGENTGYM_ENGINE_SERVERS: {settings.engine_servers} vLLM servers need one GPU each, "
            f"but {processes} trainer processes leave {len(free)} of {len(gpus)} GPUs; lower one of "
            "the two, or set it to 0 for an engine in each trainer process"
        )
    claims = Counter([*ranks, *servers])
    if shared := [gpu for gpu in servers if claims[gpu] > 1]:
        users = [f"rank {rank}" for rank, gpu in enumerate(ranks) if gpu == shared[0]]
        users += [f"vLLM server {number}" for number, gpu in enumerate(servers) if gpu == shared[0]]
        raise PlacementError(
            f"AGENTGYM_ENGINE_GPUS: {' and '.join(users)} claim GPU {shared[0]}; "
            f"name other GPUs, or lower AGENTGYM_TRAINER_PROCESSES ({processes})"
        )
    if missing := [
        gpu for gpu in servers if gpu.isdecimal() and gpu not in gpus and gpus[0].isdecimal()
    ]:
        raise PlacementError(
            f"AGENTGYM_ENGINE_GPUS: there is no GPU {missing[0]}; use {', '.join(gpus)}"
        )
    return Placement(
        ranks, tuple(EnginePlace(gpu, None, fraction or OWN_FRACTION) for gpu in servers)
    )
