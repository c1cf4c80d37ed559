"""Tests of the collector on a real environment server: batches, deadlines, retries, prefetching."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from dataclasses import dataclass, field, replace

import psutil
import pytest

from configs.experiment import Rollout
from environments.client import EnvironmentClient
from environments.protocol import Health
from tasks.agents.agent import Budgets, Message
from tasks.rollout.collector import Batch, Collector
from tasks.rollout.episode import RolloutRequest, RolloutSettings
from tasks.rollout.trajectory import Outcome, Trajectory, staleness
from tasks.training.groups import learnable_groups
from tests.support.counting_agent import CountingAgent, CountingConversation
from tests.support.counting_servers import Serve
from tests.support.processes import wait_until


@pytest.fixture(autouse=True)
def _patient_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients on a busy machine close their sessions. Leases would end them later."""
    monkeypatch.setattr("environments.client.EXIT_S", 60.0)


ROLLOUT = Rollout(max_concurrent_episodes=8, retries=1, turn_seconds=20)
SETTINGS = RolloutSettings(horizon=50, temperature=1.0)


@pytest.fixture
def counting_server(counting_server: str) -> str:
    """Wait until no session of an earlier test is open on the server of this file."""
    wait_until(lambda: open_sessions(counting_server) == 0)
    return counting_server


def collector(url: str, policy: CountingAgent, **changes: object) -> Collector:
    return Collector("counting", (url,), policy, ROLLOUT.model_copy(update=changes))


def collect(
    url: str,
    agent: CountingAgent,
    requests: list[RolloutRequest],
    settings: RolloutSettings = SETTINGS,
    **changes: object,
) -> list[Trajectory]:
    with collector(url, agent, **changes) as collecting:
        return collecting.collect([Batch("all", requests, settings)])


def plans(*tasks: int, members: int = 2) -> list[RolloutRequest]:
    return [
        RolloutRequest(task, group, member, 0)
        for group, task in enumerate(tasks)
        for member in range(members)
    ]


def without_times(trajectories: list[Trajectory]) -> list[Trajectory]:
    return [
        replace(
            t,
            seconds=0.0,
            began=0.0,
            turns=[
                replace(turn, generate_seconds=0.0, environment_seconds=0.0, began=0.0)
                for turn in t.turns
            ],
        )
        for t in trajectories
    ]


def open_sessions(url: str) -> int:
    async def ask() -> int:
        async with EnvironmentClient([url]) as client:
            health = (await client.health())[url]
            assert isinstance(health, Health)
            return health.sessions

    return asyncio.run(ask())


def test_trajectories_are_in_the_order_of_the_plan(counting_server: str) -> None:
    batch = plans(3, 1, 4, 2, 5, 9, 6)
    trajectories = collect(counting_server, CountingAgent(), batch)
    assert [(t.task, t.group, t.member) for t in trajectories] == [
        (p.task, p.group, p.member) for p in batch
    ]
    assert all(t.outcome is Outcome.SUCCESS and len(t.turns) == t.task for t in trajectories)
    assert all(
        t.completion == [x for turn in range(t.task - 1) for x in (turn, 7)] + [t.task - 1]
        for t in trajectories
    )
    assert open_sessions(counting_server) == 0


def test_episodes_with_a_turn_limit_beyond_the_longest_lease_are_played(
    counting_server: str,
) -> None:
    [trajectory] = collect(
        counting_server, CountingAgent(), plans(2, members=1), turn_seconds=1e6, retries=0
    )
    assert trajectory.outcome is Outcome.SUCCESS


def test_horizon_truncates_an_episode_and_is_its_reason(counting_server: str) -> None:
    [trajectory] = collect(
        counting_server, CountingAgent(), plans(9, members=1), RolloutSettings(4, 1.0)
    )
    assert (trajectory.outcome, trajectory.reason, len(trajectory.turns)) == (
        Outcome.TRUNCATED,
        "horizon",
        4,
    )
    assert trajectory.turns[-1].observation_tokens == []


def test_failed_episode_is_retried_and_left_out_if_it_fails_again(
    counting_server: str,
) -> None:
    failures = {2: 1, 3: 99}

    def action(task: int, turn: int) -> str:
        if turn == 1 and failures.get(task, 0) > 0:
            failures[task] -= 1
            return "fail"
        return "add 1"

    policy = CountingAgent(action=action)
    trajectories = collect(counting_server, policy, plans(2, 3, 4, members=1))
    assert [(t.outcome, t.attempts) for t in trajectories] == [
        (Outcome.SUCCESS, 2),
        (Outcome.FAILED, 2),
        (Outcome.SUCCESS, 1),
    ]
    assert "ServerFailedError" in trajectories[1].reason
    assert trajectories[1].reward == 0.0
    assert len(trajectories[0].turns) == 2  # the turns of the failed attempt are discarded
    groups = learnable_groups(trajectories, complete=True)
    assert [group[0].task for group in groups.kept] == [2, 4]
    assert groups.left_out == 1
    assert open_sessions(counting_server) == 0


@pytest.mark.parametrize(
    ("changes", "held", "reason"),
    [
        ({"turn_seconds": 2, "retries": 0}, True, "rollout.turn_seconds"),
        ({"episode_seconds": 2, "retries": 0}, True, "rollout.episode_seconds"),
        ({"batch_seconds": 3}, True, "rollout.batch_seconds"),
        # The environment is slow. On a busy machine the other episodes can also start too late.
        ({"turn_seconds": 1, "retries": 0}, False, "DeadlineExceededError"),
    ],
)
def test_stuck_engine_or_environment_fails_only_its_episodes_with_the_deadline(
    counting_server: str, changes: dict[str, float], held: bool, reason: str
) -> None:
    policy = CountingAgent(
        held={5: threading.Event()} if held else {},
        action=lambda task, turn: "add 1" if held or task != 5 else "sleep 2",
    )
    trajectories = collect(counting_server, policy, plans(5, 1), **changes)
    by_task = {task: {t.outcome for t in trajectories if t.task == task} for task in (5, 1)}
    assert by_task[5] == {Outcome.FAILED}
    assert all(reason in t.reason for t in trajectories if t.task == 5)
    if held:
        assert by_task[1] == {Outcome.SUCCESS}
    wait_until(lambda: open_sessions(counting_server) == 0)


@dataclass
class WritingAgent(CountingAgent):
    """An agent whose engine generates tokens for some seconds before its first turn ends."""

    seconds: float = 5.0

    async def begin(
        self, task: int, seed: int, observation: str, budgets: Budgets
    ) -> CountingConversation:
        self.held[task] = threading.Event()
        threading.Timer(self.seconds, self.held[task].set).start()
        return await super().begin(task, seed, observation, budgets)

    @property
    def progress(self) -> int | None:  # type: ignore[override]
        return time.monotonic_ns()

    @progress.setter
    def progress(self, _: int | None) -> None: ...


def test_turn_deadline_does_not_apply_during_progress(counting_server: str) -> None:
    [trajectory] = collect(
        counting_server, WritingAgent(), plans(5, members=1), turn_seconds=2, retries=0
    )
    assert trajectory.outcome is Outcome.SUCCESS


def test_episodes_wait_for_a_session_of_a_full_server(serve: Serve) -> None:
    url = serve("counting", "--max-sessions", "1").url
    agent = WritingAgent(seconds=2.5)
    trajectories = collect(url, agent, plans(3, 2, members=1), turn_seconds=1, retries=0)
    assert {(t.outcome, t.attempts) for t in trajectories} == {(Outcome.SUCCESS, 1)}


class SilentConversation(CountingConversation):
    async def act(self, turn: int) -> Message:
        if turn == 4:
            return await super().act(turn)
        await asyncio.sleep(1)
        return Message("hm", None, problem="no action", tokens=[turn], log_probabilities=[-1.0])


class SilentAgent(CountingAgent):
    """An agent whose first four messages have no action."""

    async def begin(
        self, task: int, seed: int, observation: str, budgets: Budgets
    ) -> CountingConversation:
        return SilentConversation(self, task)


def test_messages_without_an_action_renew_the_lease(
    counting_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.rollout.episode._lease", lambda _: 3.0)
    [trajectory] = collect(counting_server, SilentAgent(), plans(1, members=1), retries=0)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.SUCCESS, 5)


def test_episode_cut_by_the_batch_deadline_keeps_its_turns(counting_server: str) -> None:
    agent = CountingAgent(action=lambda _, turn: "sleep 8" if turn == 2 else "add 1")
    [cut] = collect(counting_server, agent, plans(5, members=1), batch_seconds=5)
    assert (cut.outcome, len(cut.turns)) == (Outcome.FAILED, 2)
    assert "rollout.batch_seconds" in cut.reason


@dataclass
class StoppingAgent(CountingAgent):
    """An agent that suspends the server after its episodes, so that sessions cannot be closed."""

    server: psutil.Process = field(default_factory=psutil.Process)

    async def begin(
        self, task: int, seed: int, observation: str, budgets: Budgets
    ) -> CountingConversation:
        return StoppingConversation(self, task)


class StoppingConversation(CountingConversation):
    _agent: StoppingAgent

    async def close(self) -> None:
        self._agent.server.suspend()


@pytest.mark.parametrize("deadline", ["episode_seconds", "batch_seconds"])
def test_finished_episode_counts_even_if_a_deadline_passes_while_its_session_closes(
    serve: Serve, deadline: str
) -> None:
    server = serve()
    agent = StoppingAgent(server=psutil.Process(server.pid).children(recursive=True)[-1])
    [trajectory] = collect(server.url, agent, plans(1, members=1), **{deadline: 4})
    agent.server.resume()
    assert (trajectory.outcome, trajectory.reason, trajectory.attempts) == (Outcome.SUCCESS, "", 1)
    wait_until(lambda: open_sessions(server.url) == 0)


def test_episodes_cancelled_before_they_begin_release_their_slots(counting_server: str) -> None:
    with collector(counting_server, CountingAgent(), batch_seconds=1e-9) as collecting:
        cut = collecting.collect([Batch("cut", plans(*range(1, 9)), SETTINGS)])
        assert {t.outcome for t in cut} == {Outcome.FAILED}
        played = collecting.stream(Batch("next", plans(1, 2), SETTINGS))
        assert [t.outcome for t in played] == [Outcome.SUCCESS] * 4


def test_episode_that_its_agent_cancels_ends_the_batch(counting_server: str) -> None:
    def action(task: int, turn: int) -> str:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError):
        collect(counting_server, CountingAgent(action=action), plans(3))
    assert open_sessions(counting_server) == 0


def test_interruption_ends_all_episodes_and_closes_sessions(counting_server: str) -> None:
    policy = CountingAgent(held={task: threading.Event() for task in (4, 5)})

    def interrupt() -> None:
        wait_until(lambda: len(policy.spoken) >= 4)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        collect(counting_server, policy, plans(4, 5))
    assert open_sessions(counting_server) == 0


def test_stream_yields_every_trajectory_and_ends_if_check_raises(counting_server: str) -> None:
    batch = Batch("all", plans(3, 1, 4, 2), SETTINGS)
    with collector(counting_server, CountingAgent()) as collecting:
        streamed = sorted(collecting.stream(batch), key=lambda t: (t.group, t.member))
        assert without_times(streamed) == without_times(collecting.collect([batch]))
    held = CountingAgent(held={4: threading.Event()})

    def check() -> None:
        raise RuntimeError("the servers are gone for good")

    with (
        collector(counting_server, held) as collecting,
        pytest.raises(RuntimeError, match="gone for good"),
    ):
        list(collecting.stream(batch, check))
    assert open_sessions(counting_server) == 0


def test_bug_in_an_agent_is_raised_unchanged_and_ends_the_batch(counting_server: str) -> None:
    def action(task: int, turn: int) -> str:
        if task == 3:
            raise ZeroDivisionError
        return "add 1"

    with pytest.raises(ZeroDivisionError):
        collect(
            counting_server,
            CountingAgent(action=action, held={30: threading.Event()}),
            plans(30, 3),
        )
    assert open_sessions(counting_server) == 0


def test_evaluation_gets_slots_before_prefetched_episodes(counting_server: str) -> None:
    agent = CountingAgent(out_of_process=False)
    batches = [Batch("step 0", plans(9, 9), SETTINGS), Batch("step 1", plans(*[45] * 8), SETTINGS)]
    with collector(counting_server, agent, max_concurrent_episodes=4) as collecting:
        collecting.collect(batches)
        with collecting.paused():
            agent.version = 1
        evaluated = collecting.collect([Batch("evaluation", plans(6, 7), SETTINGS)])
        assert agent.spoken.count((45, 0)) < 16  # not all prefetched episodes have begun
        assert {t.outcome for t in evaluated} == {Outcome.SUCCESS}
        assert {t.outcome for t in collecting.collect(batches[1:])} == {Outcome.SUCCESS}
    assert open_sessions(counting_server) == 0


@pytest.mark.parametrize("out_of_process", [False, True])
def test_next_batch_starts_during_a_straggler_and_turns_record_their_weights(
    counting_server: str, out_of_process: bool
) -> None:
    policy = CountingAgent(
        held={30: threading.Event(), 40: threading.Event()}, out_of_process=out_of_process
    )
    batches = [
        Batch("0", plans(30, 1), SETTINGS),
        Batch("1", plans(40, 3), SETTINGS),
        Batch("2", plans(5, 6), SETTINGS),
    ]
    with collector(counting_server, policy, max_off_policy_steps=1) as ahead:
        result: list[list[Trajectory]] = []
        first = threading.Thread(target=lambda: result.append(ahead.collect(batches[:2])))
        first.start()
        wait_until(lambda: (40, 0) in policy.spoken)  # while task 30 is held
        assert not result
        # Tasks 5 and 6 are two steps ahead, so they have not started.
        assert not any(task in (5, 6) for task, _ in policy.spoken)
        policy.held[40].set()
        policy.held[30].set()
        first.join()
        assert {t.policy_version for t in result[0]} == {0}
        with ahead.paused():
            before = len(policy.spoken)
            time.sleep(0.05)
            assert len(policy.spoken) == before
            policy.version = 1
        second = ahead.collect(batches[1:])
        ages = staleness(second, 1)
        assert set(ages) <= {0, 1}
        assert 1 in ages
        assert all(t.outcome is Outcome.SUCCESS and len(t.turns) == t.task for t in second)
        with ahead.paused():
            policy.version = 2
        third = ahead.collect(batches[2:])
        assert set(staleness(third, 2)) <= {0, 1}
    assert open_sessions(counting_server) == 0


def test_pause_does_not_count_toward_the_episode_deadline(counting_server: str) -> None:
    policy = CountingAgent(held={30: threading.Event()}, out_of_process=False)
    with collector(
        counting_server, policy, max_off_policy_steps=1, episode_seconds=5, retries=0
    ) as ahead:
        result: list[list[Trajectory]] = []
        batches = [
            Batch("0", plans(30, members=1), SETTINGS),
            Batch("1", plans(40, members=1), RolloutSettings(40, 1.0)),
        ]
        first = threading.Thread(target=lambda: result.append(ahead.collect(batches)))
        first.start()
        wait_until(lambda: any(task == 40 for task, _ in policy.spoken))
        policy.held[30].set()
        first.join()
        with ahead.paused():
            time.sleep(5.5)  # an update that takes longer than `episode_seconds`
        assert [t.outcome for t in ahead.collect(batches[1:])] == [Outcome.SUCCESS]


def test_closing_ends_prefetched_episodes(counting_server: str) -> None:
    policy = CountingAgent(held={40: threading.Event()})
    with collector(counting_server, policy, max_off_policy_steps=1) as ahead:
        ahead.collect([Batch("0", plans(1), SETTINGS), Batch("1", plans(40), SETTINGS)])
        wait_until(lambda: any(task == 40 for task, _ in policy.spoken))
    assert open_sessions(counting_server) == 0
