"""One session of a server: a leased episode of its world."""

from __future__ import annotations

import hashlib
import math
from asyncio import Lock

from environments.environment import Environment
from environments.protocol import Reply


class Session:
    """One open session.

    Attributes:
        environment: What it plays.
        id, number: How our dialect and AgentGym's name it.
        key: What the client called it when it asked for it, if anything.
        client: Whose place it takes, see `FairShares`; `place_free` once it takes none.
        lease_s: Seconds that it outlives its last request.
        touched: When something was last asked of it; `expires` when its lease runs out.
        turn: The number of the next action.
        action: A digest of the last one. The action itself may be of any length, and would be kept as long as the session.
        last: The last reply with an observation.
        lock: Keeps a blocking world's session to one thread at a time.
    """

    __slots__ = (
        "action",
        "client",
        "environment",
        "expires",
        "id",
        "key",
        "last",
        "lease_s",
        "lock",
        "number",
        "place_free",
        "touched",
        "turn",
    )

    def __init__(self, environment: Environment, id: str, number: int, lease_s: float, client: str, key: str | None = None) -> None:
        self.environment = environment
        self.id = id
        self.number = number
        self.key = key
        self.client = client
        self.place_free = False
        self.lease_s = lease_s
        self.touched = self.expires = math.inf
        self.turn = 0
        self.action = b""
        self.last: Reply | None = None
        self.lock = Lock()

    def renew(self, now: float) -> None:
        """The lease begins anew."""
        self.touched = now
        self.expires = now + self.lease_s


def digest_of(action: str) -> bytes:
    """What tells one action from another."""
    return hashlib.blake2b(action.encode("utf-8", "surrogatepass"), digest_size=16).digest()
