"""This rank's rollouts: an engine with the trainer's weights, and a collector that uses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import msgspec
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from environments.tools import Tool
from tasks.agents.action_format import reading_format
from tasks.agents.chat_format import chat_formats
from tasks.agents.token_agent import TokenAgent
from tasks.inference.adapter import Adapter, adapters_at_once
from tasks.inference.engine import AdapterEngine, Engine, EngineError, Sampling
from tasks.inference.engine_factory import local_engine
from tasks.inference.pool_engine import VllmPoolEngine
from tasks.inference.vllm_client import LOAD_S
from tasks.inference.vllm_engine import VllmEngine
from tasks.inference.weight_sync_check import check_weight_sync
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Trajectory
from tasks.training.episode_counts import EpisodeCounts
from tasks.training.lora import adapters, computed_weights
from tasks.training.messages import TrainerJob
from tasks.training.rank_watch import WEIGHTS_S, Heartbeats
from tasks.training.stored_weights import stored_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tasks.training.base_trainer import BaseTrainer

PROBE_TOKENS = 16
"""Tokens of each probe. No token ends one earlier, since rounding shows in the mean of a few."""


class RolloutWorker:
    """A context manager that runs this rank's share of the episodes with the trainer's weights.

    Attributes:
        engine: The engine that generates.
        processes: The process group and the rank of this process in it.
    """

    def __init__(
        self,
        job: TrainerJob,
        tokenizer: PreTrainedTokenizerBase,
        progress: Callable[[int, int], None],
        heartbeats: Heartbeats,
    ) -> None:
        """Start the engine.

        Args:
            tokenizer: The policy's tokenizer.
            progress: Called periodically with the number of finished episodes and the number of all
                episodes.
            heartbeats: Limits the time in which the engine gets its weights.
        """
        experiment = job.experiment
        self.processes = PartialState()
        rank, ranks = self.processes.process_index, self.processes.num_processes
        self.engine = _started_engine(job, rank, ranks)
        self._experiment, self._progress, self._heartbeats = experiment, progress, heartbeats
        self._sleeping_engine = (
            self.engine if job.engine_sleep and isinstance(self.engine, VllmEngine) else None
        )
        self._counts = EpisodeCounts(job.folder / "progress", rank, ranks)
        policy = experiment.policy
        self._chat_formats = chat_formats(
            tokenizer,
            reading_format(
                policy.action_format, experiment.environment.name, experiment.environment.rules
            ),
            job.instruction,
            conversation_start=policy.conversation_start,
            chat_template_kwargs=policy.chat_template_kwargs,
            thinking=policy.thinking,
            compaction=policy.compaction,
            tool_lists=msgspec.convert(job.tool_lists, list[list[Tool]]),
        )
        self._collector = Collector(
            experiment.environment.name,
            job.environment_urls,
            TokenAgent(self.engine, self._chat_formats),
            experiment.rollout,
            dialect=experiment.environment.dialect,
            identity=job.environment_identity,
            success_score=job.success_score,
        )
        self._loaded_step: int | None = None
        self._load_metrics: dict[str, float] = {}
        self._cache_counts = (0, 0)
        self.sleep()  # the policy needs the memory

    def __enter__(self) -> RolloutWorker:
        self._collector.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._collector.__exit__(*_)

    def collect(
        self, name: str, batches: Sequence[Batch], due: int = 1, count: int = 1
    ) -> list[Trajectory]:
        """Return this rank's trajectories of the first batch, or of several (`Collector.collect`).

        Episodes of the other batches may start in the meantime. The reported progress covers the
        calls of all ranks under the same name.
        """
        name = f"{name} with the weights of step {self._loaded_step}"

        def progress(finished: int, total: int) -> None:
            self._progress(*self._counts.add(name, finished, total))

        return self._collector.collect(batches, progress, due=due, count=count)

    def collect_shared(
        self, name: str, requests: Sequence[RolloutRequest], settings: RolloutSettings
    ) -> list[Trajectory]:
        """Split episodes across ranks and return all trajectories, by group and member.

        Raises:
            EngineError: Another run has loaded its weights into the shared servers.
        """
        local = requests[self.processes.process_index :: self.processes.num_processes]
        played = self.gather(self.collect(name, [Batch(name, local, settings)]))
        if isinstance(self.engine, VllmPoolEngine):  # no update compares these episodes
            self.engine.check_weights()
        return played

    def gather(self, local: list[Trajectory]) -> list[Trajectory]:
        """Gather the trajectories of all ranks on every rank, by group and member."""
        return sorted(gather_object(local), key=lambda t: (t.group, t.member))

    def broadcast(self, local: Any) -> Any:
        """Broadcast an object from rank 0 to every rank."""
        box = [local]
        broadcast_object_list(box)
        return box[0]

    def load_weights(self, step: int, trainer: BaseTrainer) -> None:
        """Load the trainer's weights of `step` into the engine and check the result.

        The method does nothing if the engine already has these weights.

        Raises:
            EngineError: The engine does not compute with these weights.
        """
        if self._loaded_step == step:
            return
        began = time.perf_counter()
        prompts = [
            self._chat_formats[0].prompt(text)
            for text in ("probe", f"probe {step}", "a b c d e f g", "1 2 3 4 5")
        ]
        sampling = Sampling(self._experiment.rollout.temperature, PROBE_TOKENS, (), seed=step)
        with (
            self._heartbeats.part(WEIGHTS_S),
            self._collector.paused(finish=not self._experiment.rollout.update_in_flight),
        ):
            self._load(step, trainer)
            gap = check_weight_sync(
                self.engine,
                prompts,
                trainer.score_continuations,
                sampling,
                self._experiment.policy.dtype,
            )
            self._loaded_step = step
        seconds = self._load_metrics.get("sync/seconds", 0.0) + time.perf_counter() - began
        self._load_metrics = {
            "sync/seconds": seconds,
            "sync/probe_gap_mean": gap.mean,
            "sync/probe_gap_largest": gap.largest,
        }

    def sleep(self) -> None:
        """Free the engine's memory for the update, if sleep mode is enabled.

        `load_weights` wakes the engine. No episode may be in progress.
        """
        if self._sleeping_engine is None:
            return
        began = time.perf_counter()
        self._sleeping_engine.sleep()
        self._loaded_step = None
        self._load_metrics["sync/seconds"] = (
            self._load_metrics.get("sync/seconds", 0.0) + time.perf_counter() - began
        )

    def metrics(self) -> dict[str, float]:
        """Return the engine's metrics since the last call."""
        cached, prompts = self.engine.cached_tokens, self.engine.prompt_tokens
        before_cached, before_prompts = self._cache_counts
        self._cache_counts = (cached, prompts)
        loads, self._load_metrics = {"sync/seconds": 0.0, **self._load_metrics}, {}
        return {
            "rollout/prefix_cache_share": (cached - before_cached)
            / max(1, prompts - before_prompts),
            "rollout/concurrency_limit": float(self._collector.concurrency.limit),
            **loads,
        }

    def _load(self, step: int, trainer: BaseTrainer) -> None:
        """Load the trainer's weights of `step`, or its LoRA adapter, into the engine.

        For servers shared by all ranks, only rank 0 loads. No rank sends requests meanwhile. With
        `rollout.update_in_flight` those in flight are frozen, otherwise there are none.
        """
        model, lora = trainer.accelerator.unwrap_model(trainer.model), self._experiment.policy.lora
        servers = self.engine if isinstance(self.engine, VllmPoolEngine) else None
        with nullcontext() if servers is None else servers.updating():
            if servers is not None:
                self.processes.wait_for_everyone()
            loads = self.processes.is_main_process or servers is None
            if lora is not None:
                # gathering sharded weights needs every rank
                adapter = Adapter(adapters(model), lora)
                if loads:
                    cast("AdapterEngine", self.engine).load_adapter(adapter)
            else:
                weights = computed_weights(model, trainer.engine_dtype)
                in_vllm = isinstance(self.engine, (VllmEngine, VllmPoolEngine))
                try:
                    if loads:
                        self.engine.load(stored_weights(model, weights) if in_vllm else weights)
                finally:
                    weights.drain()
            if servers is not None:
                loaded = self.broadcast(servers.pool.loaded)
                if not self.processes.is_main_process:
                    servers.adopt_weights(loaded)
            self.engine.policy_version = step


def _started_engine(job: TrainerJob, rank: int, ranks: int) -> Engine:
    """Start the engine of a trainer process with the weights of `job.policy`.

    Args:
        job: The trainer's job.
        rank: Number of this process, from 0.
        ranks: Number of processes that each start their own engine, or share the servers.

    Raises:
        EngineError: The engine could not start, or servers have a smaller context than the recipe.
    """
    rollout = job.experiment.rollout
    if job.engine_urls:
        transfer = None
        if job.engine_weights == "nccl" and rank == 0:  # rank 0 loads the servers
            if not torch.cuda.is_available():
                raise EngineError(
                    "AGENTGYM_ENGINE_WEIGHTS is nccl, but the trainer has no GPU. Set it to folder."
                )
            from tasks.inference.weight_transfer import WeightTransfer

            transfer = WeightTransfer(LOAD_S)
        engine = VllmPoolEngine(
            job.engine_urls,
            request_seconds=rollout.request_seconds,
            weights_folder=job.engine_weights_folder,
            transfer=transfer,
            rank=rank,
            ranks=ranks,
            update_in_flight=rollout.update_in_flight,
            adapters=adapters_at_once(rollout),
        )
        if engine.context_length < rollout.trajectory_tokens:
            engine.close()
            raise EngineError(
                f"the vLLM servers have a context of {engine.context_length} tokens, but "
                f"rollout.trajectory_tokens is {rollout.trajectory_tokens}; start them with "
                f"--max-model-len {rollout.trajectory_tokens}, or lower rollout.trajectory_tokens"
            )
        return engine
    return local_engine(
        rollout,
        job.experiment.policy.dtype,
        job.policy,
        lora=job.experiment.policy.lora,
        distributed=ranks > 1,
        gpu_memory_fraction=job.engine_memory_fraction,
        sleep_mode=job.engine_sleep,
        cpu_cache_gb=job.engine_cpu_cache_gb,
    )
