"""Message types of our protocol: the items of requests and their replies.

Server and client share this module, so they cannot diverge. Every operation takes a list of items
and answers a list of replies in the same order. A single call is a list of one. Every reply
identifies its item: `create` by the client's key, the others by session, and `step` also by turn.
The header content-digest protects the body.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Annotated

import msgspec

from environments.tools import ANY_ACTION, Tool

MIN_LEASE_S = 0.1
MAX_LEASE_S = 86_400.0
MAX_ITEMS = 10_000
MAX_ACTION_CHARACTERS = 2**20

SessionId = Annotated[
    str,
    msgspec.Meta(max_length=128, description="What `create` answered; its content has no meaning."),
]
Key = Annotated[
    str,
    msgspec.Meta(
        max_length=128, description="Chosen by the client at random. The reply repeats it."
    ),
]
Action = Annotated[str, msgspec.Meta(max_length=MAX_ACTION_CHARACTERS)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Any integer in a message. No larger integer is a valid id or index."""
TaskIndex = Annotated[Int64, msgspec.Meta(description="The task to begin; see /v1/tasks.")]


class CreateItem(msgspec.Struct, forbid_unknown_fields=True):
    """Open a session. With `index` its first episode begins at once, which saves a round trip.

    Repeating it with the same `key` is safe. Until the first step it returns the same session.
    """

    index: TaskIndex | None = None
    lease_s: (
        Annotated[
            float,
            msgspec.Meta(
                ge=MIN_LEASE_S,
                le=MAX_LEASE_S,
                description="Seconds that the session outlives its last request.",
            ),
        ]
        | None
    ) = None
    key: Key | None = None


class ResetItem(msgspec.Struct, forbid_unknown_fields=True):
    """Begin another episode in an open session.

    Repeating it is safe: the same task begins in the same way.
    """

    session: SessionId
    index: TaskIndex


class StepItem(msgspec.Struct, forbid_unknown_fields=True):
    """Perform one action.

    Repeating the last `turn` with the same action returns the same answer.
    """

    session: SessionId
    turn: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=2**63 - 1, description="0 for the first action of the episode, then 1, 2, ..."
        ),
    ]
    action: Action


class CloseItem(msgspec.Struct, forbid_unknown_fields=True):
    """End a session.

    `session` may also be the `key` of a create whose answer was lost. If that create arrives later,
    it is rejected.
    """

    session: SessionId


class Error(msgspec.Struct, omit_defaults=True):
    """Why an item or a whole request was rejected.

    Attributes:
        type: A short stable name, e.g. "session_ended".
        message: Human-readable: what is wrong and how to fix it.
        field: The invalid field, if any.
    """

    type: str
    message: str
    field: str | None = None


class Reply(msgspec.Struct, omit_defaults=True):
    """Reply to one item: status 200 and the fields of its operation, or another status and `error`.

    Attributes:
        status: As in HTTP: 200, 404 (no such session), 409 (wrong turn, episode over), 410 (session
            ended), 422 (invalid field), 500 (the world failed and the session has ended), 503
            (session limit reached).
        key: create: the item's key.
        session: Id of the new session (create) or of the item's session.
        lease_s: create: seconds that the session outlives its last request.
        free: create: approximate number of further sessions that the server could open now.
        turn: The item's turn (step), or the next turn (create with an index, reset: 0).
        observation: create with an index, reset, step: the agent's observation.
        reward: step: reward of the action.
        reward_range: create: smallest and largest reward of one action in this world.
        done: step: whether the world has ended the episode.
        refused: step: whether the world rejected the action, None if it does not report it. See
            `environments.environment.Step`.
        state_key: create with an index, reset, step: a digest of the current state, if the world
            reports one.
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
    refused: bool | None = False
    state_key: str = ""
    error: Error | None = None
    number: int | None = None
    """create in the AgentGym dialect: the session's integer id."""
    world: str | None = None
    """create: name and version of the world. See `WorldInfo.identity`."""
    batchable: bool = False
    """create: whether answers are fast enough for sessions to share a request."""
    reward_range: tuple[float, float] | None = None
    key: str | None = None

    def answers(self, item: msgspec.Struct) -> bool:
        """Return whether this reply belongs to the item.

        It must have the item's key, or its session and, for a step, its turn.
        """
        if isinstance(item, CreateItem):
            return self.key == item.key
        return self.session == getattr(item, "session", None) and (
            not isinstance(item, StepItem) or self.turn == item.turn
        )


class Replies(msgspec.Struct, omit_defaults=True):
    """Body of every answer to an operation.

    Attributes:
        items: One reply per item of the request, in its order.
        error: The first item's error, set only if no item succeeded. The whole answer then has that
            item's status.
    """

    items: list[Reply] = []
    error: Error | None = None


DIGEST_HEADER = "content-digest"
"""Header with the digest of an answer's body (RFC 9530)."""


def content_digest(body: bytes) -> str:
    """Return the value of `DIGEST_HEADER` for a body."""
    return f"sha-256=:{base64.b64encode(sha256(body).digest()).decode()}:"


REWARD_ROUNDING = 1e-6
"""Tolerance of the range check. Rewards are differences of floats."""


def in_range(reward: float, reward_range: tuple[float, float]) -> bool:
    """Return whether a reward lies within the range."""
    return reward_range[0] - REWARD_ROUNDING <= reward <= reward_range[1] + REWARD_ROUNDING


def identity(name: str, version: str) -> str:
    """Return a world's name and version as one string."""
    return f"{name} {version}"


class Health(msgspec.Struct):
    """GET /health.

    Attributes:
        name: The world's name.
        version: The world's version.
        tasks: Number of tasks over all splits.
        sessions: Open sessions.
        status: "healthy", as OpenEnv's clients expect.
    """

    name: str
    version: str
    tasks: int
    sessions: int
    status: str = "healthy"


class WorldInfo(msgspec.Struct):
    """GET /v1/world.

    Attributes:
        name: The world's name.
        version: Changes whenever a task index would mean another task.
        instruction: Start of the agent's prompt, before its first observation.
        tasks: Number of tasks by split.
        entry: The world's class, as "module:Class".
        rules: Rule set: "ours" or "agentgym".
        success_score: Smallest score at which an episode that the world ended is a success.
        reward_range: Smallest and largest reward of one action.
        tools: The actions as functions.
        member_tools: Those of each world of a mixture, in its order. Empty for a single world.
    """

    name: str
    version: str
    instruction: str
    tasks: dict[str, int]
    entry: str = ""
    rules: str = "ours"
    success_score: float = 1.0
    reward_range: tuple[float, float] = (0.0, 1.0)
    tools: list[Tool] = msgspec.field(default_factory=lambda: [ANY_ACTION])
    member_tools: list[list[Tool]] = []

    @property
    def tool_lists(self) -> list[list[Tool]]:
        """The tools of each world. See `World.tool_lists`."""
        return self.member_tools or [self.tools]

    @property
    def identity(self) -> str:
        """Name and version, which identify the world uniquely."""
        return identity(self.name, self.version)


class TaskList(msgspec.Struct, omit_defaults=True):
    """GET /v1/tasks?split=: the task indices of a split or another named list.

    The order is fixed.

    Attributes:
        tags: With tags=1 the kind of each task, e.g. "depth 2", in the same order. Empty if the
            world has no tags.
    """

    split: str
    tasks: list[int]
    tags: list[str] = []
