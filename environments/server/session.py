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
        environment: The environment of the session.
        id, number: Its names in our dialect and in AgentGym's.
        key: The client's key of the create request, if any.
        client: The client that it counts for. See `FairShares`.
        place_free: Whether it no longer counts for the client.
        lease_s: Seconds that it outlives its last request.
        touched: Time of the last request in seconds.
        expires: Time at which its lease runs out.
        turn: Number of the next action.
        action: Digest of the last action. The action itself may be long and would stay in memory.
        last: The last reply with an observation.
        lock: Restricts a blocking world's session to one thread at a time.
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
        """Restart the lease."""
        self.touched = now
        self.expires = now + self.lease_s


def digest_of(action: str) -> bytes:
    """Return a digest that identifies an action."""
    return hashlib.blake2b(action.encode("utf-8", "surrogatepass"), digest_size=16).digest()
