"""The episodes that chat clients play: their conversations as rows of tokens, and their rewards.

An episode is a conversation with an id. Its calls form rows. A call whose messages extend those of
an earlier call continues its row: the sampled tokens stay, and only the new messages are encoded.
Any other call begins another row, for example after the client shortened its history.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from tasks.agents.chat_format import Message
from tasks.agents.sampling_seeds import stable_seed
from tasks.endpoint.chat_tokens import THOUGHTS, ChatTokens
from tasks.inference.engine import Generation, Sampling
from tasks.rollout.episode import outcome_of
from tasks.rollout.trajectory import Outcome, Trajectory, Turn

Ending = Literal["recorded", "failed", "without_reward"]
EpisodeProblem = Literal[
    "unknown_episode", "episode_busy", "episode_failed", "no_answer", "too_many_episodes"
]

CHECK_S = 60.0
"""Seconds between two searches for idle episodes."""


class EpisodeError(Exception):
    """A request does not fit the state of its episode.

    Attributes:
        code: The kind of the problem.
    """

    def __init__(self, text: str, code: EpisodeProblem) -> None:
        """Raise with the problem and its fix."""
        super().__init__(text)
        self.code: EpisodeProblem = code


@dataclass(slots=True, eq=False)
class Row:
    """Calls of an episode whose tokens extend each other.

    Attributes:
        chat: The form of the conversation.
        prompt: Token ids before the first answer.
        first_observation: Text of the last message before the first answer.
        messages: All messages, the policy's answers included.
        answers: Indices of the policy's answers in `messages`.
        bodies: Rendered messages before and between the answers, one text for each answer.
        turns: The answers, and the tokens that follow them.
        context: Token ids of the whole row so far.
        samplings: Sampling parameters of each answer.
        busy: Whether a call that continues the row is being answered.
    """

    chat: ChatTokens
    prompt: list[int]
    first_observation: str
    messages: list[Message]
    answers: list[int]
    bodies: list[str]
    turns: list[Turn]
    context: list[int]
    samplings: list[Sampling] = field(default_factory=list)
    busy: bool = False


@dataclass(slots=True, eq=False)
class Episode:
    """A conversation that has no reward yet.

    Attributes:
        id: Its name for clients.
        task: Number of its task. Episodes of the same task form a group.
        seed: Seed of its calls that give none.
        rows: Its rows, in the order in which they began.
        calls: Number of calls so far, also of those without an answer.
        in_flight: Number of calls that are being answered.
        is_named: Whether a client chose the id.
        faults: Why calls have no answer, by a digest of their messages. A call with the same
            messages that is answered removes its entry.
        cut: Budget that refused a call, e.g. "horizon". Empty if none did.
        began, used: Time of the first and of the last call, in seconds since 1970.
    """

    id: str
    task: int
    seed: int
    is_named: bool
    rows: list[Row] = field(default_factory=list)
    calls: int = 0
    in_flight: int = 0
    faults: dict[bytes, str] = field(default_factory=dict)
    cut: str = ""
    began: float = field(default_factory=time.time)
    used: float = field(default_factory=time.time)

    @property
    def horizon_used(self) -> int:
        """Number of calls that are answered or are being answered."""
        return self.in_flight + sum(len(row.turns) for row in self.rows)

    @property
    def messages(self) -> list[Message]:
        """Messages of the row that was extended last."""
        return max(self.rows, key=lambda row: row.turns[-1].began).messages


@dataclass(frozen=True, slots=True)
class Call:
    """A request with its token ids.

    Attributes:
        number: Number of the call in the episode, from 0.
        chat: The form of the conversation, with the tools of the request.
        messages: The messages of the request.
        answers: As in `Row`.
        body: Rendered messages after the last of the answers.
        context: All token ids before the answer, shape (P,).
        row: The row that it continues. None if it begins another one.
        added: Token ids after the row's last answer, shape (R,).
        began: Time of the request in seconds since 1970.
    """

    episode: Episode
    number: int
    chat: ChatTokens
    messages: list[Message]
    answers: list[int]
    body: str
    context: list[int]
    row: Row | None
    added: list[int]
    began: float


class Episodes:
    """The open episodes of an endpoint.

    Attributes:
        open: Open episodes by id.
        counts: Number of ended episodes: "recorded" with a reward, "failed" by a fault,
            "without_reward" otherwise.
    """

    def __init__(self, chat: ChatTokens, seed: int, idle_s: float, limit: int) -> None:
        """
        Args:
            chat: Converts messages to token ids.
            seed: Seed of the calls that give none.
            idle_s: An episode without a call for so many seconds ends without a reward.
            limit: Most open episodes.
        """
        self._chat, self._seed, self._idle_s, self._limit = chat, seed, idle_s, limit
        self.open: dict[str, Episode] = {}
        self.counts: dict[Ending, int] = {"recorded": 0, "failed": 0, "without_reward": 0}
        self._rows: dict[bytes, list[tuple[Episode, Row]]] = {}
        self._begun = 0
        self._next_check = 0.0

    def begin_call(
        self,
        messages: list[Message],
        episode_id: str | None,
        task: int | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Call:
        """Find the conversation that a request continues, or begin another, and encode the request.

        Args:
            messages: The messages of the request.
            episode_id: The episode that the client names. None: the one of the task whose messages
                are the longest beginning of the request's, or else a new one.
            task: Number of the task that the client names. None: a number that follows from the
                messages before the first answer.
            tools: The tools of the request, in OpenAI's form.

        Raises:
            EpisodeError: There are too many open episodes.
            UnsuitableToolsError: The chat template cannot carry the tools.
            UnsuitableMessagesError: The chat template does not accept the messages.
        """
        if time.time() >= self._next_check:
            self._next_check = time.time() + CHECK_S
            self.drop_idle()
        chat = self._chat.with_tools(tools)
        episode, row = self._find(messages, episode_id, task)
        if row is not None:
            # The client has not sent the thoughts.
            messages = [*row.messages, *messages[len(row.messages) :]]
        row, added = _encode(chat, messages, row if row and row.chat is chat else None)
        answers = [] if row is None or chat.rewrites else list(row.answers)
        body = chat.pieces(messages, answers, opens_answer=False)[-1]
        context = [*row.context, *added] if row else added
        if episode is None:
            episode = self._begin(episode_id, task if task is not None else _task_of(messages))
        if row is not None:
            row.busy = True
        episode.in_flight += 1
        episode.calls += 1
        number, began = episode.calls - 1, time.time()
        return Call(episode, number, chat, messages, answers, body, context, row, added, began)

    def answered(self, call: Call, generation: Generation, sampling: Sampling, cut: str) -> Message:
        """Record the answer to a call, and return it.

        Args:
            generation: Tokens and log-probabilities as sampled. The log-probabilities of a greedy
                answer are recorded as NaN, because it was not drawn from them.
            sampling: Sampling parameters.
            cut: Budget that cut the answer, or empty.
        """
        episode, row, text = call.episode, call.row, call.chat.text(generation.tokens)
        answer = call.chat.answer(generation.tokens)
        self._end_call(call)
        episode.cut = ""  # the client has shortened its messages since a budget refused a call
        episode.faults.pop(_keys(call.messages)[-1], None)
        turn = Turn(
            tokens=list(generation.tokens),
            log_probabilities=list(generation.log_probabilities)
            if sampling.temperature
            else [math.nan] * len(generation.tokens),
            action=text,
            message=text,
            policy_version=generation.policy_version,
            cut=cut,
            began=call.began,
            generate_seconds=time.time() - call.began,
        )
        if row is None:
            first = call.messages[-1]["content"]
            row = Row(call.chat, call.context, first, [], [], [], [], [])
            episode.rows.append(row)
        else:
            self._forget(episode, row)
            last, new = row.turns[-1], call.messages[len(row.messages) :]
            last.observation_tokens = call.added
            last.observation = "\n\n".join(message["content"] for message in new)
            last.environment_seconds = max(0.0, call.began - last.began - last.generate_seconds)
        row.turns.append(turn)
        row.samplings.append(sampling)
        row.messages = [*call.messages, answer]
        row.answers = [*call.answers, len(call.messages)]
        row.context = [*call.context, *turn.tokens]
        row.bodies.append(call.body)
        self._rows.setdefault(_keys(row.messages)[-1], []).append((episode, row))
        return answer

    def unanswered(self, call: Call, fault: str) -> None:
        """Record that a call has no answer. `fault` is the reason, empty for an invalid request."""
        self._end_call(call)
        if fault:
            call.episode.faults[_keys(call.messages)[-1]] = fault
        if (
            not call.episode.rows
            and not call.episode.in_flight
            and not (fault and call.episode.is_named)
        ):
            self.close(call.episode, "failed" if fault else None)

    def rewarded(
        self, episode: Episode, reward: float, success_score: float, environment: str, engine: str
    ) -> Trajectory:
        """Return the trajectory of an episode with its reward.

        Its turns are those of the rows, one row after the other. The last turn has the reward.
        `group` and `member` are not set.

        Raises:
            EpisodeError: A fault left a call without an answer. The episode is closed as failed,
                and the reward is not used.
        """
        if episode.faults:
            self.close(episode, "failed")
            reason = next(iter(episode.faults.values()))
            raise EpisodeError(
                f"a call of episode {episode.id} has no answer ({reason}), so the episode is left "
                "out",
                "episode_failed",
            )
        first = episode.rows[0]
        for before, row in pairwise(episode.rows):
            row.turns[0].context = row.prompt
            before.turns[-1].observation = row.first_observation
        turns = [turn for row in episode.rows for turn in row.turns]
        turns[-1].reward = reward
        outcome = outcome_of(reward, success_score)
        if episode.cut and outcome is not Outcome.SUCCESS:
            outcome = Outcome.TRUNCATED
        return Trajectory(
            environment=environment,
            task=episode.task,
            group=0,
            member=0,
            seed=episode.seed,
            horizon=len(turns),
            policy_version=turns[0].policy_version,
            engine=engine,
            prompt=first.prompt,
            first_observation=first.first_observation,
            turns=turns,
            outcome=outcome,
            reason=episode.cut if outcome is Outcome.TRUNCATED else "",
            seconds=time.time() - episode.began,
            began=episode.began,
        )

    def checked(self, episode_id: str) -> Episode:
        """Return an open episode that can get a reward.

        Raises:
            EpisodeError: There is none of this id, or a call is being answered, or none was.
        """
        episode = self.open.get(episode_id)
        if episode is None:
            raise EpisodeError(
                f"there is no open episode {episode_id}; give the id of an episode without a "
                "reward",
                "unknown_episode",
            )
        if episode.in_flight:
            raise EpisodeError(
                f"a call of episode {episode_id} is being answered; send the reward after it",
                "episode_busy",
            )
        if not episode.rows and not episode.faults:
            raise EpisodeError(
                f"no call of episode {episode_id} was answered; send the reward after the last one",
                "no_answer",
            )
        return episode

    def drop_idle(self, everything: bool = False) -> None:
        """End the episodes that are idle for too long, or all of them, without a reward."""
        oldest = time.time() - self._idle_s
        for episode in [
            each
            for each in self.open.values()
            if everything or (each.used < oldest and not each.in_flight)
        ]:
            self.close(episode, "failed" if episode.faults else "without_reward")

    def _find(
        self, messages: list[Message], episode_id: str | None, task: int | None
    ) -> tuple[Episode | None, Row | None]:
        """Return the episode of a request, and the idle row with the longest matching messages.

        An episode without a name must have the task that the client names.
        """
        keys = _keys(messages)
        for end in range(len(messages) - 1, 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            for episode, row in self._rows.get(keys[end - 1], ()):
                is_meant = (
                    episode.id == episode_id
                    if episode_id is not None
                    else task in (None, episode.task)
                )
                if is_meant and not row.busy:
                    return episode, row
        return (self.open.get(episode_id) if episode_id is not None else None), None

    def _begin(self, episode_id: str | None, task: int) -> Episode:
        if len(self.open) >= self._limit:
            raise EpisodeError(
                f"{self._limit} episodes are open; send their rewards, or wait", "too_many_episodes"
            )
        named, seed = episode_id is not None, stable_seed("endpoint", self._seed, self._begun)
        episode = Episode(episode_id or secrets.token_hex(12), task, seed, named)
        self._begun += 1
        self.open[episode.id] = episode
        return episode

    def _end_call(self, call: Call) -> None:
        call.episode.in_flight -= 1
        call.episode.used = time.time()
        if call.row is not None:
            call.row.busy = False

    def close(self, episode: Episode, count: Ending | None) -> None:
        """Forget an episode and count how it ended, if it counts."""
        if count is not None:
            self.counts[count] += 1
        self.open.pop(episode.id, None)
        for row in episode.rows:
            self._forget(episode, row)

    def _forget(self, episode: Episode, row: Row) -> None:
        key = _keys(row.messages)[-1]
        left = [each for each in self._rows.get(key, ()) if each[1] is not row]
        if left:
            self._rows[key] = left
        else:
            self._rows.pop(key, None)


def _encode(
    chat: ChatTokens, messages: Sequence[Message], row: Row | None
) -> tuple[Row | None, list[int]]:
    """Encode the messages of a request.

    Args:
        chat: The form of the conversation.
        row: The row whose messages they begin with. None if there is none in this form.

    Returns:
        The row and the token ids after its last answer, shape (R,). None and all token ids, shape
        (P,), if there is no row, or if the template writes its turns again.
    """
    if row is not None and not chat.rewrites:
        pieces = chat.pieces(messages, row.answers)
        if all(map(str.startswith, pieces, row.bodies)):
            return row, chat.tokens(pieces[-1], messages, row.turns[-1].tokens)
    (whole,) = chat.pieces(messages, ())
    tokens = chat.tokens(whole, messages)
    if row is not None and chat.rewrites and tokens[: len(row.context)] == row.context:
        return row, tokens[len(row.context) :]
    return None, tokens


def _keys(messages: Sequence[Message]) -> list[bytes]:
    """Return a digest of the messages up to each one.

    White space around answers and their thoughts are ignored.
    """
    keys, digest = [], b""
    for message in messages:
        content = (
            message["content"].strip() if message["role"] == "assistant" else message["content"]
        )
        shown = {name: part for name, part in message.items() if name not in THOUGHTS}
        whole = json.dumps({**shown, "content": content}, sort_keys=True)
        digest = hashlib.sha256(digest + whole.encode()).digest()
        keys.append(digest)
    return keys


def _task_of(messages: Sequence[Message]) -> int:
    """Return a task number, below 2**31, that follows from the messages before the first answer."""
    opening = next(
        (messages[:i] for i, message in enumerate(messages) if message["role"] == "assistant"),
        messages,
    )
    return (
        stable_seed(
            "task", json.dumps([[message["role"], message["content"]] for message in opening])
        )
        % 2**31
    )
