"""Benchmark of episode collection with a real engine and a real environment server.

The baselines are:

- Lock-step rounds: each turn, all episodes of a batch wait for the slowest one. The next batch
  waits for the longest episode.
- TRL's loop: GRPOTrainer with `environment_factory` and colocated vLLM (`trl_loop`). Its batches
  have as many episodes as the collector has in flight.
- One offline call: the engine processes the prompts of all requests of a collection at once. The
  engine's batch size is equal on both sides. The collector has more episodes in flight than that,
  because some of them wait for their environment.

A random policy samples every message, and the lengths vary. The expert's action is performed, so
the episodes are as long as those of a trained policy. Both sides have the same engine, tasks,
latencies and batch size. They also have the same seeds, except for TRL, which has none. Runs
alternate, and `low` and `high` are the smallest and largest ratio of a pair. The policy has 60,000
parameters, so that the work outside the engine has the largest possible weight. Engine use is also
measured with 3 million parameters.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.experiment import Rollout, StarterPolicy
from environments.client import EnvironmentClient
from tasks.agents.agent import Budgets
from tasks.agents.chat_format import ChatFormat
from tasks.inference.engine import Generation, Sampling
from tasks.inference.event_loop import in_event_loop
from tasks.inference.vllm_engine import VllmEngine, vllm_parameters
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tests.benchmarks.guided_agent import (
    HORIZON,
    DelayedClient,
    GuidedAgent,
    Latency,
    expert_solutions,
    exponential,
    heavy_tail,
    no_latency,
    slow,
)
from tests.benchmarks.load import row, served
from tests.support.tiny_policy import build_tiny_policy

EPISODES, FEW_EPISODES, IN_FLIGHT = 1536, 192, 64
MORE_IN_FLIGHT = 80
ROLLOUT = Rollout(
    max_concurrent_episodes=IN_FLIGHT, turn_tokens=32, trajectory_tokens=2048, turn_seconds=120
)
BUDGETS = Budgets(1.0, ROLLOUT.turn_tokens, ROLLOUT.trajectory_tokens)
STOPS = 1 / 12
"""Share of the vocabulary that ends a message, so that messages have 12 tokens on average."""

CASES: tuple[tuple[str, Latency, int], ...] = (
    ("no latency", no_latency, 5),
    ("latency exponential, mean 0.3 s", exponential, 3),
    ("latency mean 0.1 s, 2 % of steps 20 times that", heavy_tail, 2),
)


@dataclass(frozen=True)
class Sides:
    """The methods that collect the same episodes.

    Each returns the number of sampled tokens.
    """

    url: str
    model: str
    engine: VllmEngine
    agent: GuidedAgent
    requests: tuple[RolloutRequest, ...]
    rollout: Rollout = ROLLOUT

    def with_requests(self, count: int) -> Sides:
        """Return a copy with the first `count` episodes."""
        return replace(self, requests=self.requests[:count])

    def client(self, latency: Latency) -> DelayedClient:
        client = DelayedClient(
            [self.url], deadline_s=60, connections=self.rollout.max_concurrent_episodes
        )
        client.latency = latency
        return client

    def ours(self, latency: Latency) -> int:
        """Collect with the collector."""
        sides = self

        class DelayedCollector(Collector):
            def client(self) -> EnvironmentClient:
                return sides.client(latency)

        with DelayedCollector("textcraft", (self.url,), self.agent, self.rollout) as collector:
            trajectories = collector.collect(
                [Batch("all", self.requests, RolloutSettings(HORIZON, 1.0))]
            )
        assert all(t.succeeded for t in trajectories), {t.reason for t in trajectories}
        return sum(len(turn.tokens) for t in trajectories for turn in t.turns)

    def lock_step(self, latency: Latency) -> int:
        """Collect in rounds: all episodes sample a message, then all perform a step."""
        return in_event_loop(self._lock_step(latency))

    async def _lock_step(self, latency: Latency) -> int:
        tokens = 0
        async with self.client(latency) as client:
            for begin in range(0, len(self.requests), IN_FLIGHT):
                tokens += await self._batch(client, self.requests[begin : begin + IN_FLIGHT])
        return tokens

    async def _batch(self, client: DelayedClient, requests: Sequence[RolloutRequest]) -> int:
        begun = await asyncio.gather(*(client.start(request.task) for request in requests))
        going = [
            (session, await self.agent.begin(request.task, request.seed, observation, BUDGETS))
            for request, (session, observation) in zip(requests, begun, strict=True)
        ]
        tokens = 0
        for turn in range(HORIZON):
            messages = await asyncio.gather(*(conversation.act(turn) for _, conversation in going))
            tokens += sum(len(message.tokens) for message in messages)
            steps = await asyncio.gather(
                *(
                    client.step(session, message.action or "")
                    for (session, _), message in zip(going, messages, strict=True)
                )
            )
            still = [(pair, step) for pair, step in zip(going, steps, strict=True) if not step.done]
            for (_, conversation), step in still:
                await conversation.observe(step.observation)
            going = [pair for pair, _ in still]
            if not going:
                break
        await asyncio.gather(*(client.close(session) for session, _ in begun))
        return tokens


@contextmanager
def sides(size: StarterPolicy) -> Generator[Sides, None, None]:
    """Start a server and an engine with a random policy of this size, and yield the sides."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    with served("textcraft") as server, tempfile.TemporaryDirectory() as folder:
        model = build_tiny_policy(Path(folder), size=size)
        engine = VllmEngine(
            model, context_length=ROLLOUT.trajectory_tokens, max_num_seqs=IN_FLIGHT, dtype="float32"
        )
        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
            chat_format, ids = ChatFormat(tokenizer, "bare", None), range(len(tokenizer))
            chat_format.stop_tokens += tuple(random.Random(0).sample(ids, round(len(ids) * STOPS)))
            agent = GuidedAgent(engine, chat_format)
            solutions = expert_solutions()
            object.__setattr__(agent, "solutions", solutions)
            tasks = itertools.islice(itertools.cycle(solutions), EPISODES)
            requests = tuple(
                RolloutRequest(task, group, 0, group) for group, task in enumerate(tasks)
            )
            yield Sides(server.url, model, engine, agent, requests)
        finally:
            engine.close()


class Recorder:
    """A recorder of the engine's requests until the block ends."""

    def __init__(self, engine: VllmEngine) -> None:
        self.requests: list[tuple[list[int], Sampling]] = []
        self._engine, self._generate = engine, engine.generate

    def __enter__(self) -> Recorder:
        async def generate(
            tokens: Sequence[int], sampling: Sampling, session: object | None = None
        ) -> Generation:
            self.requests.append((list(tokens), sampling))
            return await self._generate(tokens, sampling, session)

        self._engine.generate = generate  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._engine.generate  # type: ignore[method-assign]


def offline(engine: VllmEngine, requests: Sequence[tuple[list[int], Sampling]]) -> int:
    """Sample the responses to all prompts with one call of the engine."""
    from vllm.inputs.engine import tokens_input

    llm, tokens = engine._engine, 0
    for number, (prompt, sampling) in enumerate(requests):
        llm.add_request(f"offline {number}", tokens_input(prompt), vllm_parameters(sampling))
    while llm.has_unfinished_requests():
        tokens += sum(len(output.outputs[0].token_ids) for output in llm.step() if output.finished)
    return tokens


def clear_prefix_cache(engine: VllmEngine) -> None:
    """Clear the prefix cache, so that no run reuses the computations of another."""
    engine._engine.reset_prefix_cache()


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """Return the seconds of the work and its result."""
    began = time.perf_counter()
    tokens = work()
    return time.perf_counter() - began, tokens


def alternate(
    engine: VllmEngine | None, ours: Callable[[], int], baseline: Callable[[], int], pairs: int
) -> tuple[list[float], list[float]]:
    """Run both sides alternately, `pairs` times each. Return results per second of each run.

    The prefix cache of `engine` is cleared before each run.
    """
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        sides = list(zip(rates, (ours, baseline), strict=True))
        for side_rates, side in sides if number % 2 == 0 else reversed(sides):
            if engine is not None:
                clear_prefix_cache(engine)
            seconds, done = timed(side)
            side_rates.append(done / seconds)
    return rates


def against_lock_step(bench: Sides) -> list[dict[str, Any]]:
    """Compare collection with lock-step rounds on the same episodes, `IN_FLIGHT` at a time."""
    bench, rows = bench.with_requests(FEW_EPISODES), []
    for name, latency, pairs in CASES:

        def collect(side: Callable[[Latency], int], latency: Latency = latency) -> int:
            side(latency)
            return len(bench.requests)

        ours, baseline = alternate(
            bench.engine, lambda: collect(bench.ours), lambda: collect(bench.lock_step), pairs
        )
        rows.append(row(f"rollouts, {name}: vs. lock-step rounds", ours, "episodes/s", baseline))
    return rows


def against_trl(bench: Sides) -> list[dict[str, Any]]:
    """Compare collection with TRL's loop on the same tasks, `IN_FLIGHT` at a time."""
    from tests.benchmarks.trl_loop import TrlLoop

    rows = []
    for name, latency, count, pairs in (
        ("no latency", None, FEW_EPISODES * 2, 5),
        ("latency mean 0.02 s", slow, IN_FLIGHT * 2, 3),
    ):
        few = bench.with_requests(count)
        with tempfile.TemporaryDirectory() as folder:
            loop = TrlLoop(few, few.model, Path(folder), IN_FLIGHT, HORIZON, latency)

            def baseline(loop: TrlLoop = loop, few: Sides = few) -> int:
                loop.collect([request.task for request in few.requests])
                return len(few.requests)

            def ours(few: Sides = few, latency: Latency | None = latency) -> int:
                few.ours(latency or no_latency)
                return len(few.requests)

            loop.collect([request.task for request in few.requests[:IN_FLIGHT]])  # warms up
            speeds, others = alternate(few.engine, ours, baseline, pairs)
            rows.append(row(f"rollouts, {name}: vs. TRL's loop", speeds, "episodes/s", others))
    return rows


def against_offline(bench: Sides, name: str, pairs: int) -> dict[str, Any]:
    """Compare the sampled tokens per second with one offline call for the same requests."""
    bench = replace(
        bench, rollout=ROLLOUT.model_copy(update={"max_concurrent_episodes": MORE_IN_FLIGHT})
    )
    with Recorder(bench.engine) as recorder:
        bench.ours(no_latency)
    ours, baseline = alternate(
        bench.engine,
        lambda: bench.ours(no_latency),
        lambda: offline(bench.engine, recorder.requests),
        pairs,
    )
    return row(
        f"rollouts, no latency, policy of {name}: engine use, vs. one offline call",
        ours,
        "tokens/s",
        baseline,
    )


def run() -> list[dict[str, Any]]:
    """Return the rows of the benchmark."""
    with sides(StarterPolicy(hidden_size=64, layers=2, heads=2)) as bench:
        bench.with_requests(FEW_EPISODES).ours(no_latency)  # warms up
        rows = [
            *against_lock_step(bench),
            *against_trl(bench),
            against_offline(bench, "60,000 parameters", 3),
        ]
    with sides(StarterPolicy(hidden_size=192, layers=4, heads=4)) as bench:
        bench.with_requests(FEW_EPISODES).ours(no_latency)
        return [*rows, against_offline(bench.with_requests(FEW_EPISODES * 2), "3 million", 2)]
