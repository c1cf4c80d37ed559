"""Collection that runs ahead of the training: episodes of the next batches begin while the stragglers of this one finish.

The episodes live in an event loop of their own, in a thread of their own, so that environments go on working while the trainer
updates. How far they may run ahead is bounded by which batches the trainer hands over; every turn records the version of the weights
that wrote it, and the importance correction of the loss weighs it accordingly.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from environments.door import EpisodeClient
from tasks.rollout.collector import Collector, Progress
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.generation_pause import GenerationPause
from tasks.rollout.trajectory import Trajectory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """The episodes of one training step.

    Attributes:
        step: Training step, from 0.
        plans: Its episodes.
        conditions: What they share.
    """

    step: int
    plans: Sequence[RolloutRequest]
    conditions: RolloutSettings


class AheadCollector:
    """Collects batch after batch for a trainer in another thread. A context manager."""

    def __init__(self, collector: Collector, *, out_of_process: bool) -> None:
        """
        Args:
            collector: Who plays where.
            out_of_process: Whether the engine computes elsewhere. If so, messages are generated during the update too; an engine in this
                process finishes the turns it is at, and rests.
        """
        self._collector = collector
        self._out_of_process = out_of_process
        self._pause = GenerationPause()
        self._episodes: dict[int, list[asyncio.Task[Trajectory]]] = {}
        self._client: EpisodeClient | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="episodes", daemon=True)

    def __enter__(self) -> AheadCollector:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all that is in flight at once, and closes the sessions."""
        if self._thread.is_alive():
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def collect(self, batches: Sequence[Batch], progress: Progress | None = None) -> list[Trajectory]:
        """The trajectories of the first batch, in the order of its plans; the other batches may begin when it leaves slots.

        Args:
            batches: This step's batch and those that may run ahead, in order. A batch that was handed over before goes on as it was.
            progress: Called with (finished, all) of the first batch, in the episodes' thread.
        """
        return self._do(self._collect(batches, progress))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is generated while the block lasts: for new weights. Turns that are being generated are finished before."""
        self._do(self._pause.pause())
        try:
            yield
        finally:
            if self._out_of_process:
                self._loop.call_soon_threadsafe(self._pause.resume)

    def _run(self) -> None:
        import torch

        torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
        with torch.no_grad():  # gradients are recorded by thread
            self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        self._client = await self._collector.client().__aenter__()

    async def _end(self) -> None:
        going = [episode for episodes in self._episodes.values() for episode in episodes]
        for episode in going:
            episode.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        assert self._client is not None
        await self._client.__aexit__(None, None, None)

    async def _collect(self, batches: Sequence[Batch], progress: Progress | None) -> list[Trajectory]:
        self._pause.resume()
        for batch in batches:
            if batch.step not in self._episodes:
                # Who asks first gets the next place: an older batch goes before a newer one.
                self._episodes[batch.step] = [asyncio.ensure_future(self._play(plan, batch.conditions)) for plan in batch.plans]
        first = batches[0]
        # Kept until they are there, so that close() finds them.
        episodes = self._episodes[first.step]
        trajectories = await self._finished(first, episodes, progress)
        del self._episodes[first.step]
        if not self._out_of_process:
            await self._pause.pause()
        return trajectories

    async def _finished(self, batch: Batch, episodes: Sequence[asyncio.Task[Trajectory]], progress: Progress | None) -> list[Trajectory]:
        def show(_: object) -> None:
            if progress is not None:
                progress(sum(episode.done() for episode in episodes), len(episodes))

        for episode in episodes:
            episode.add_done_callback(show)
        _, late = await asyncio.wait(episodes, timeout=self._collector.rollout.batch_seconds)
        for episode in late:
            episode.cancel()
        if late:
            await asyncio.wait(late)
        given_up = self._collector.given_up
        return [
            given_up(plan, batch.conditions) if episode.cancelled() else episode.result()
            for plan, episode in zip(batch.plans, episodes, strict=True)
        ]

    async def _play(self, plan: RolloutRequest, conditions: RolloutSettings) -> Trajectory:
        async with self._collector.concurrency.slot():
            assert self._client is not None
            return await self._collector.play_with_retries(plan, conditions, self._client, self._pause)


def staleness(trajectories: Sequence[Trajectory], step: int) -> list[int]:
    """How many training steps older than `step` the weights of each policy token are, in order. Shape (policy tokens,)."""
    return [step - turn.policy_version for t in trajectories for turn in t.turns for _ in turn.tokens]
