"""Our own wire dialect in types: what the items of a request hold and what answers each of them.

Server and client share this module, so neither can drift from the other. Every operation takes a list of items and
answers a list of replies in the same order. A single call is a list of one. Every reply names the item that it answers:
`create` by the key that the client chose, the others by session, and `step` also by turn. The header content-digest protects the body.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Annotated

import msgspec

MIN_LEASE_S = 0.1
MAX_LEASE_S = 86_400.0
MAX_ITEMS = 10_000
MAX_ACTION_CHARACTERS = 2**20

SessionId = Annotated[str, msgspec.Meta(max_length=128, description="What `create` answered; its content has no meaning.")]
Key = Annotated[str, msgspec.Meta(max_length=128, description="Chosen by the client at random. The reply repeats it.")]
Action = Annotated[str, msgspec.Meta(max_length=MAX_ACTION_CHARACTERS)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Any integer that travels: what is larger names nothing."""
TaskIndex = Annotated[Int64, msgspec.Meta(description="The task to begin; see /v1/tasks.")]


class CreateItem(msgspec.Struct, forbid_unknown_fields=True):
    """Opens a session. With `index` its first episode begins at once, which saves a round trip.

    Repeating it with the same `key` is safe: until the first step it answers the session that was opened then.
    """

    index: TaskIndex | None = None
    lease_s: (
        Annotated[float, msgspec.Meta(ge=MIN_LEASE_S, le=MAX_LEASE_S, description="Seconds that the session outlives its last request.")]
        | None
    ) = None
    key: Key | None = None


class ResetItem(msgspec.Struct, forbid_unknown_fields=True):
    """Begins another episode in an open session. Repeating it is safe: the same task begins in the same way."""

    session: SessionId
    index: TaskIndex


class StepItem(msgspec.Struct, forbid_unknown_fields=True):
    """Performs one action. Repeating the last `turn` with the same action answers what was answered then."""

    session: SessionId
    turn: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1, description="0 for the first action of the episode, then 1, 2, ...")]
    action: Action


class CloseItem(msgspec.Struct, forbid_unknown_fields=True):
    """Ends a session."""

    session: SessionId


class Error(msgspec.Struct, omit_defaults=True):
    """Why an item or a whole request was not served.

    Attributes:
        type: A short stable name, e.g. "session_ended".
        message: For people: what was wrong and what would be right.
        field: The field at fault, where one is.
    """

    type: str
    message: str
    field: str | None = None


class Reply(msgspec.Struct, omit_defaults=True):
    """What answers one item: status 200 and the fields of its operation, or another status and `error`.

    Attributes:
        status: As in HTTP: 200, 404 (no such session), 409 (wrong turn, episode over), 410 (session ended), 422 (a field is
            wrong), 500 (the world failed; the session has ended), 503 (the session limit is reached).
        key: create: the item's key.
        session: The session's id: of the new session (create) or the item's.
        lease_s: create: seconds that the session outlives its last request.
        free: create: about how many more sessions the server could open now.
        turn: The item's turn (step), or the turn that comes next (create with an index, reset: 0).
        observation: create with an index, reset, step: what the agent sees.
        reward: step: what the action earned.
        reward_range: create: the least and the greatest reward of one action in this world.
        done: step: whether the world has ended the episode.
        refused: step: whether the world did not carry out the action; see `environments.environment.Step`.
        state_key: create with an index, reset, step: a digest of the state that the world is in now, where it tells one.
        error: Present unless the status is 200.
    """

    status: int
    session: SessionId | None = None
    lease_s: float | None = None
    free: int | None = None
    turn: int | None = None
    observation: str | None = None
    reward: float | None = None
    done: bool | None = None
    refused: bool = False
    state_key: str = ""
    error: Error | None = None
    number: int | None = None
    """create in the AgentGym dialect: the session's integer id."""
    world: str | None = None
    """create: name and version of the world, see `WorldInfo.identity`."""
    batchable: bool = False
    """create: whether an answer takes so little that sessions can share a request: none waits for a slow one."""
    reward_range: tuple[float, float] | None = None
    key: str | None = None

    def answers(self, item: msgspec.Struct) -> bool:
        """Whether this reply names the item: its key, or its session and, for a step, its turn."""
        if isinstance(item, CreateItem):
            return self.key == item.key
        return self.session == getattr(item, "session", None) and (not isinstance(item, StepItem) or self.turn == item.turn)


class Replies(msgspec.Struct, omit_defaults=True):
    """The body of every answer to an operation.

    Attributes:
        items: One reply per item of the request, in its order.
        error: Set when no item succeeded; it is the first item's error, and its status is the status of the whole answer.
    """

    items: list[Reply] = []
    error: Error | None = None


DIGEST_HEADER = "content-digest"
"""The header of an answer with the digest of its body (RFC 9530)."""


def content_digest(body: bytes) -> str:
    """The value of `DIGEST_HEADER` for a body."""
    return f"sha-256=:{base64.b64encode(sha256(body).digest()).decode()}:"


REWARD_ROUNDING = 1e-6
"""Rewards are differences of floats: one this close to the range counts as within it."""


def in_range(reward: float, reward_range: tuple[float, float]) -> bool:
    """Whether a reward is a number within the range."""
    return reward_range[0] - REWARD_ROUNDING <= reward <= reward_range[1] + REWARD_ROUNDING


def identity(name: str, version: str) -> str:
    """A world's name and version in one text."""
    return f"{name} {version}"


class Health(msgspec.Struct):
    """GET /health.

    Attributes:
        name: The world's name.
        version: The world's version.
        tasks: Number of tasks over all splits.
        sessions: Sessions open now, in all workers.
        workers: Worker processes that answered.
    """

    name: str
    version: str
    tasks: int
    sessions: int
    workers: int


class WorldInfo(msgspec.Struct):
    """GET /v1/world.

    Attributes:
        name: The world's name.
        version: Changes whenever the same task index would mean another task.
        instruction: What an agent is told before its first observation.
        tasks: Number of tasks by split.
        entry: The world's class, as "module:Class".
        rules: Whose rules it is played by.
        success_score: The score from which an episode that the world ended is a success.
        reward_range: The least and the greatest reward of one action.
    """

    name: str
    version: str
    instruction: str
    tasks: dict[str, int]
    entry: str = ""
    rules: str = "ours"
    success_score: float = 1.0
    reward_range: tuple[float, float] = (0.0, 1.0)

    @property
    def identity(self) -> str:
        """Name and version: what tells this world from every other."""
        return identity(self.name, self.version)


class TaskList(msgspec.Struct, omit_defaults=True):
    """GET /v1/tasks?split=: the task indices of a split or of another named list, in their fixed order.

    Attributes:
        split: The name that was asked for.
        tasks: The indices.
        tags: With tags=1 the kind of each task, e.g. "depth 2", in the same order; empty where the world tells none.
    """

    split: str
    tasks: list[int]
    tags: list[str] = []
