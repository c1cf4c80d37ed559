"""The collector: plays batches of episodes concurrently, up to the capacity of the engine.

There are no rounds and no barriers. An episode requests its next turn as soon as its environment
has answered. Episodes run in the event loop's thread (`inference.event_loop`), so the next batches
can be played while the trainer updates. They are off-policy by at most
`rollout.max_off_policy_steps`. With 0 collection is synchronous: the caller passes one batch at a
time. With `rollout.stream` each group is a batch, and `collect` returns those that finish first.
Every turn records the version of the weights that sampled it, and the importance correction of the
loss uses that version.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from configs.experiment import Rollout
from configs.rules import Dialect
from environments.handshake import EpisodeClient, open_client
from tasks.agents.agent import Agent
from tasks.inference.event_loop import event_loop, in_event_loop
from tasks.rollout.concurrency import ConcurrencyLimit
from tasks.rollout.episode import EpisodePlayer, RolloutRequest, RolloutSettings
from tasks.rollout.generation_pause import GenerationPause
from tasks.rollout.trajectory import Outcome, Trajectory

CHECK_S = 0.5

Progress = Callable[[int, int], None]
Finished = Callable[[Trajectory], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """A set of episodes that are collected together.

    Attributes:
        name: Unique name among the unfinished batches, e.g. "step 12".
        requests: Its episodes. No two have the same group and member.
        settings: Settings shared by all its episodes.
    """

    name: str
    requests: Sequence[RolloutRequest]
    settings: RolloutSettings


class Collector:
    """Plays the episodes of one agent against the servers of one environment.

    Use it as a context manager. Call its methods from a single thread other than the event loop's.

    Attributes:
        concurrency: The limit on concurrent episodes.
    """

    def __init__(
        self,
        environment: str,
        urls: Sequence[str],
        agent: Agent,
        rollout: Rollout,
        *,
        dialect: Dialect = "ours",
        identity: str = "",
        success_score: float = 1.0,
    ) -> None:
        """Configure the collector without opening connections.

        Args:
            environment: Name of the world, for the records.
            urls: Addresses of its servers.
            agent: The agent that plays. If it generates in this process, generation is paused
                between two calls of `collect`.
            rollout: Budgets, deadlines and limits.
            dialect: Protocol that the servers speak.
            identity: `WorldInfo.identity` of the world that the servers must host. Empty: any
                world.
            success_score: Lowest score of an episode ended by the world that counts as a success.
        """
        self._dialect, self._identity, self._success_score = dialect, identity, success_score
        self._environment, self._urls = environment, tuple(urls)
        self._agent, self._rollout = agent, rollout
        self.concurrency = ConcurrencyLimit(
            rollout.max_concurrent_episodes,
            rollout.trajectory_tokens,
            lambda: agent.kv_cache_tokens,
        )
        self._pause = GenerationPause()
        self._running_batches: dict[str, _RunningBatch] = {}
        self._dispatcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Collector:
        self._player = EpisodePlayer(
            self._environment,
            in_event_loop(self.client().__aenter__()),
            self._agent,
            self._rollout,
            self._success_score,
            self._pause,
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel all running episodes and close their sessions."""
        in_event_loop(self._end())

    def client(self) -> EpisodeClient:
        """Open a client of the servers with one connection per concurrent episode."""
        rollout = self._rollout
        return open_client(
            self._urls,
            self._environment,
            self._dialect,
            expected=self._identity,
            deadline_s=rollout.turn_seconds,
            connections=rollout.max_concurrent_episodes,
        )

    def collect(
        self,
        batches: Sequence[Batch],
        progress: Progress | None = None,
        *,
        due: int = 1,
        count: int = 1,
    ) -> list[Trajectory]:
        """Play some of the batches to their end and return their trajectories.

        By default it is the first batch. The trajectories are in the order of the batches and their
        requests.

        A failed episode is played again with a fresh session and the same seed, up to
        `rollout.retries` times. If it still fails, its trajectory has the outcome `failed`.
        Episodes that are unfinished after `rollout.batch_seconds` also have the outcome `failed`.

        Args:
            batches: Batches in order of urgency. Those that are not returned are prefetched into
                free slots. A batch passed before under the same name continues where it was.
            progress: Called with (finished, all) of the episodes to return, if they have changed,
                at most twice a second and after each batch. It runs in the event loop's thread.
            due: Number of batches, from the first, that are returned in any case.
            count: Number of batches to return, if it is more than `due`: those that finish first.
        """
        return in_event_loop(self._collect(batches, progress, due, count))

    def stream(
        self, batch: Batch, check: Callable[[], None] = lambda: None
    ) -> Iterator[Trajectory]:
        """Play any number of episodes and yield each trajectory when it is finished.

        Trajectories are not kept, and there is no deadline for the whole batch.

        Args:
            batch: The episodes to play.
            check: Called about twice a second. It may raise to end the collection.
        """
        ready: SimpleQueue[Trajectory | None] = SimpleQueue()
        playing = asyncio.run_coroutine_threadsafe(self._stream(batch, ready.put), event_loop())
        playing.add_done_callback(lambda _: ready.put(None))
        checked = time.monotonic()
        try:
            while True:
                try:
                    trajectory = ready.get(timeout=CHECK_S)
                    if trajectory is None:
                        break
                    yield trajectory
                except Empty:
                    pass
                if time.monotonic() - checked >= CHECK_S:
                    check()
                    checked = time.monotonic()
            playing.result()
        finally:
            playing.cancel()

    @contextmanager
    def paused(self, *, finish: bool = True) -> Iterator[None]:
        """Pause generation for the duration of the block, e.g. to load new weights.

        Args:
            finish: Whether to finish the messages that are being generated first. If not, the
                block may freeze them, and only new messages wait for its end.
        """
        in_event_loop(self._pause.pause(finish=finish))
        try:
            yield
        finally:
            if self._agent.out_of_process:
                event_loop().call_soon_threadsafe(self._pause.resume)

    async def _collect(
        self, batches: Sequence[Batch], progress: Progress | None, due: int, count: int
    ) -> list[Trajectory]:
        running = [self._running_batches.get(b.name) or _RunningBatch(b) for b in batches]
        deadline = time.monotonic() + self._rollout.batch_seconds
        returned, reported = running[:due], (0, 0)
        self._play(running)
        try:
            while True:
                finished = [each.over.done() for each in running]
                returned = [running[i] for i in first_finished(finished, due, count)]
                for each in returned:
                    if each.over.done():
                        each.over.result()
                counts = (
                    sum(len(each.done) for each in returned),
                    sum(len(each.batch.requests) for each in returned),
                )
                if progress is not None and counts != reported:
                    progress(*counts)
                    reported = counts
                left = deadline - time.monotonic()
                if all(each.over.done() for each in returned) or left <= 0:
                    break
                await asyncio.wait(
                    [each.over for each in running if not each.over.done()],
                    timeout=min(left, CHECK_S),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            await self._remove(returned)
        if not self._agent.out_of_process:
            await self._pause.pause()
        reason = f"deadline: the batch took more than {self._rollout.batch_seconds:g} s (rollout.batch_seconds)"

        def unfinished(each: _RunningBatch, request: RolloutRequest) -> Trajectory:
            found = each.begun.get((request.group, request.member))
            found = found or self._player.unplayed(request, each.batch.settings)
            if found.outcome is Outcome.FAILED:  # not only its session remained to be closed
                found.reason = reason
            return found

        return [
            each.done.get((request.group, request.member)) or unfinished(each, request)
            for each in returned
            for request in each.batch.requests
        ]

    async def _stream(self, batch: Batch, finished: Finished) -> None:
        running = _RunningBatch(batch, finished)
        self._play([running])
        try:
            await running.over
        finally:
            await self._remove([running])

    def _play(self, running: Sequence[_RunningBatch]) -> None:
        """Play batches ahead of all others, in order of urgency."""
        urgent = {each.batch.name: each for each in running}
        others = {k: each for k, each in self._running_batches.items() if k not in urgent}
        self._running_batches = urgent | others
        self._pause.resume()
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = asyncio.create_task(self._dispatch())

    async def _remove(self, running: Sequence[_RunningBatch]) -> None:
        """Remove batches and cancel their unfinished episodes."""
        await asyncio.gather(*(each.cancel() for each in running))
        for each in running:
            self._running_batches.pop(each.batch.name, None)

    async def _dispatch(self) -> None:
        """Start episodes up to the concurrency limit, taking the most urgent batch first."""
        while any(running.waiting for running in self._running_batches.values()):
            await self.concurrency.acquire()
            running = next((each for each in self._running_batches.values() if each.waiting), None)
            if running is None:
                self.concurrency.release()
            else:
                episode = running.start(self._episode(running, running.waiting.popleft()))
                # Not in the coroutine: it may be cancelled before it begins.
                episode.add_done_callback(lambda _: self.concurrency.release())

    async def _episode(self, running: _RunningBatch, request: RolloutRequest) -> None:
        trajectory = await self._player.play(request, running.batch.settings, running.begin)
        self.concurrency.observe(trajectory)
        running.finish(trajectory)

    async def _end(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.cancel()
        await asyncio.gather(*(running.cancel() for running in self._running_batches.values()))
        await self._player.client.__aexit__(None, None, None)


class _RunningBatch:
    """A batch with running or waiting episodes. Use it only in the event loop.

    Attributes:
        batch: The episodes to play.
        waiting: Requests of the episodes that have not begun.
        begun: Maps (group, member) of each running episode to its trajectory so far.
        done: The same for finished episodes, unless they are delivered elsewhere.
        over: Resolved when all episodes are finished. It holds the exception of an episode that hit
            a bug or a server of another world. Other faults become outcomes.
    """

    def __init__(self, batch: Batch, deliver: Finished | None = None) -> None:
        """`deliver` is called with each finished trajectory instead of keeping it in `done`."""
        self.batch = batch
        self.waiting = deque(batch.requests)
        self.begun: dict[tuple[int, int], Trajectory] = {}
        self.done: dict[tuple[int, int], Trajectory] = {}
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = len(batch.requests)
        self._running: set[asyncio.Task[None]] = set()
        self._cancelled = False
        self._deliver = deliver or self._keep
        if not batch.requests:
            self.over.set_result(None)

    def start(self, episode: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run an episode as a task."""
        task = asyncio.create_task(episode)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def begin(self, trajectory: Trajectory) -> None:
        """Register an episode or its next attempt as running."""
        self.begun[trajectory.group, trajectory.member] = trajectory

    def finish(self, trajectory: Trajectory) -> None:
        """Deliver the trajectory of a finished episode and resolve `over` after the last one."""
        self.begun.pop((trajectory.group, trajectory.member), None)
        self._deliver(trajectory)
        self._left -= 1
        if self._left == 0 and not self.over.done():
            self.over.set_result(None)

    async def cancel(self) -> None:
        """Cancel running and waiting episodes and return once their sessions are closed."""
        self.waiting.clear()
        if not self._cancelled:  # a second cancellation would interrupt the closing of the sessions
            self._cancelled = True
            for task in self._running:
                task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def _keep(self, trajectory: Trajectory) -> None:
        self.done[trajectory.group, trajectory.member] = trajectory

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        bug: BaseException | None = RuntimeError("the agent or its engine cancelled an episode")
        if not task.cancelled():
            bug = task.exception()
        if bug is not None and not self._cancelled and not self.over.done():
            self.over.set_exception(bug)


def first_finished(finished: Sequence[bool], due: int, count: int) -> list[int]:
    """Return the places of the batches to return: those that are due, then finished ones.

    If too few are finished, unfinished ones follow. Earlier batches are preferred to later ones.

    Args:
        finished: Whether each batch is finished, in order of urgency.
        due: Number of batches, from the first, that are due.
        count: Number of batches to return, if it is more than `due`.
    """
    others = sorted(range(due, len(finished)), key=lambda i: not finished[i])
    return [*range(due), *others[: max(0, count - due)]]
