"""A live episode, played through the environment's own server.

Each turn may be played by hand, by the expert, by a checkpoint or by an endpoint. The episode may
branch off a recorded trajectory after some turns. Environments are deterministic, so its actions
are replayed and the observations are compared with the recorded ones. Before an agent plays, it
receives all earlier turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from environments.client import EnvironmentClient, Session
from tasks.agents.agent import Agent, Budgets, Conversation, Message, TokenBudgetError
from tasks.rollout.episode import outcome_of, perform
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

LEASE_SECONDS = 1800.0
MAX_TURNS = 200
BY_HAND = "by hand"
STOPPED = "stopped in the viewer"
"""Reason of an episode that was saved before it ended."""


class ReplayError(RuntimeError):
    """A recorded trajectory differs from its replay. The message gives the first differing turn."""


@dataclass(slots=True)
class AgentContext:
    """The part of an episode that an agent's conversation contains.

    Attributes:
        turns: Number of turns it contains, with their observations.
        unanswered: The agent's last message, whose observation the conversation does not contain,
            and the seconds that it took. None if there is none.
    """

    conversation: Conversation
    turns: int = 0
    unanswered: tuple[Message, float] | None = None


@dataclass(slots=True)
class LiveEpisode:
    """One episode in progress.

    Attributes:
        trajectory: The turns so far.
        success_score: Lowest score of an episode ended by the environment that counts as a success.
        players: The player of each turn, in order.
        note: Last error, for the page. Empty if there is none.
        out_of_tokens: Whether the last agent has used up its token budget, which ends a rollout.
            Another agent may continue.
    """

    trajectory: Trajectory
    client: EnvironmentClient
    session: Session
    success_score: float = 1.0
    players: list[str] = field(default_factory=list)
    note: str = ""
    out_of_tokens: bool = False
    _contexts: dict[str, AgentContext] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _playing: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether the environment, the turn limit or the token budget ended the episode."""
        return self.out_of_tokens or self._ended

    @property
    def _ended(self) -> bool:
        """Whether the environment or the turn limit ended the episode."""
        trajectory = self.trajectory
        return (
            trajectory.outcome is not Outcome.TRUNCATED
            or len(trajectory.turns) >= trajectory.horizon
        )

    @property
    def ending(self) -> str:
        """Description of how the episode ended, for the page."""
        outcome, reward = self.trajectory.outcome, self.trajectory.reward
        cut = f" by {self.trajectory.reason}" if outcome is Outcome.TRUNCATED else ""
        return f"{outcome}{cut}, reward {reward:.3g}"

    @property
    def playing(self) -> bool:
        """Whether an agent is playing in the background."""
        return self._playing is not None and not self._playing.done()

    async def act(self, action: str) -> None:
        """Play one turn by hand."""
        async with self._turn:
            await self._perform(Message(action, action), BY_HAND, 0.0)

    async def advance(self, name: str, agent: Agent, budgets: Budgets) -> None:
        """Let an agent play one turn if its token budget allows it.

        If it raises an exception, the episode is unchanged. If only the environment failed, the
        next call performs the same message, because the server may have performed it already.
        """
        async with self._turn:
            if self._ended:
                return
            try:
                message, seconds = await self._next_message(name, agent, budgets)
            except TokenBudgetError as limit:
                await self._forget(name)
                self.out_of_tokens, self.trajectory.reason = True, str(limit)
                return
            except BaseException:
                await self._forget(name)  # the conversation may lack a turn or contain it twice
                raise
            await self._perform(message, name, seconds)

    def play_on(
        self, opening: Callable[[], Awaitable[tuple[str, Agent]]], budgets: Budgets
    ) -> None:
        """Let an agent play to the end in the background. `pause` stops it between two turns.

        The agent may have to be loaded first.
        """

        async def play() -> None:
            try:
                self.note = "Loading the agent…"
                name, agent = await opening()
                self.note = ""
                await self.advance(name, agent, budgets)
                while not self.over:
                    await self.advance(name, agent, budgets)
            except Exception as problem:  # noqa: BLE001 - the page shows any error
                self.note = f"{type(problem).__name__}: {problem}"

        if not self.playing:
            self._playing = asyncio.create_task(play())

    def pause(self) -> None:
        """Stop the agent that plays in the background."""
        if self._playing is not None:
            self._playing.cancel()

    async def replay(self, first_observation: str, turns: Sequence[Turn]) -> None:
        """Replay recorded turns.

        Raises:
            ReplayError: An observation differs from the recorded one.
        """
        if first_observation != self.trajectory.first_observation:
            raise ReplayError(
                "The first observation differs from the recorded one, because another version of the "
                "world played the trajectory. Choose a trajectory of the installed version."
            )
        for number, turn in enumerate(turns):
            action = None if turn.malformed else turn.action
            message = Message(
                turn.message or turn.action,
                action,
                turn.observation,
                turn.tokens,
                turn.log_probabilities,
                turn.policy_version,
            )
            await self._perform(message, "recorded", turn.generate_seconds)
            if self.trajectory.turns[-1].observation != turn.observation:
                raise ReplayError(
                    f"The observation of turn {number + 1} differs from the recorded one, because "
                    "another version of the world played the trajectory. Choose a trajectory of the "
                    "installed version."
                )

    async def close(self) -> None:
        """Stop the agent that plays, and close the conversations and the session."""
        self.pause()
        if self._playing is not None:
            await asyncio.wait([self._playing])
        async with self._turn:
            for name in list(self._contexts):
                await self._forget(name)
            await self.client.close(self.session)

    async def _next_message(
        self, name: str, agent: Agent, budgets: Budgets
    ) -> tuple[Message, float]:
        """Return the agent's message of this turn, and the seconds that it took to write."""
        context = await self._update_context(name, agent, budgets)
        if context.unanswered is None:
            began = time.perf_counter()
            message = await context.conversation.act(len(self.trajectory.turns))
            context.unanswered = message, time.perf_counter() - began
        return context.unanswered

    async def _forget(self, name: str) -> None:
        """Close an agent's conversation. Its next turn begins another one."""
        if (context := self._contexts.pop(name, None)) is not None:
            await context.conversation.close()

    async def _update_context(self, name: str, agent: Agent, budgets: Budgets) -> AgentContext:
        """Add all turns that an agent has not received to its conversation."""
        trajectory = self.trajectory
        if name in self._contexts and self._was_overtaken(name):
            await self._forget(name)
        if name not in self._contexts:
            conversation = await agent.begin(
                trajectory.task, trajectory.seed, trajectory.first_observation, budgets
            )
            self._contexts[name] = AgentContext(conversation)
        context = self._contexts[name]
        for turn in trajectory.turns[context.turns :]:
            if context.unanswered is None:
                context.conversation.recall(_message(turn))
            await context.conversation.observe(turn.observation)
            context.turns, context.unanswered = context.turns + 1, None
        return context

    def _was_overtaken(self, name: str) -> bool:
        """Return whether another turn was played instead of the agent's unanswered message."""
        context = self._contexts[name]
        if context.unanswered is None or len(self.trajectory.turns) == context.turns:
            return False
        return (
            self.players[context.turns] != name
            or self.trajectory.turns[context.turns].message != context.unanswered[0].text
        )

    async def _perform(self, message: Message, player: str, seconds: float) -> None:
        began = time.time() - seconds
        turn, done = await perform(message, self.client, self.session)
        turn.began, turn.generate_seconds = began, seconds
        self.trajectory.turns.append(turn)
        self.players.append(player)
        self.out_of_tokens = False
        if done:
            self.trajectory.outcome = outcome_of(self.trajectory.reward, self.success_score)
            self.trajectory.reason = ""
        else:
            self.trajectory.reason = "horizon" if self._ended else STOPPED


def _message(turn: Turn) -> Message:
    return Message(
        turn.message or turn.action,
        None if turn.malformed else turn.action,
        "",
        turn.tokens,
        turn.log_probabilities,
    )


async def begin(
    client: EnvironmentClient,
    environment: str,
    task: int,
    seed: int = 0,
    horizon: int = MAX_TURNS,
    success_score: float = 1.0,
) -> LiveEpisode:
    """Start an episode of a task with at most `horizon` turns.

    Raises:
        EnvironmentCallError: The server does not answer, or the task does not exist.
    """
    session, observation = await client.start(task, lease_s=LEASE_SECONDS)
    trajectory = Trajectory(
        environment, task, 0, 0, seed, horizon, 0, "viewer", first_observation=observation
    )
    trajectory.outcome, trajectory.reason = Outcome.TRUNCATED, STOPPED
    return LiveEpisode(trajectory, client, session, success_score)
