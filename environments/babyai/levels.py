"""The forty levels in AgentGym's numbering, and their generation from a seed.

Layouts and missions are identical to minigrid's, draw for draw. Only slow parts of minigrid are
replaced:
- numpy calls for single numbers.
- The construction of gymnasium spaces.
- An encoded image after every step.
- A printed message for every rejected layout.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, cast

import gymnasium
import minigrid  # noqa: F401  (registers the levels)
from minigrid.core.grid import Grid
from minigrid.core.roomgrid import Room
from minigrid.core.world_object import Wall, WorldObj
from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.envs.babyai.core.verifier import AfterInstr, BeforeInstr, Instr, SeqInstr

from environments.babyai.draws import Draws

LEVELS = (
    "GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObjS6", "GoToLocalS8N7", "GoToObjMazeS7", "GoToImpUnlock",
    "GoToSeqS5R2", "GoToRedBlueBall", "GoToDoor", "GoToObjDoor", "Open", "OpenRedDoor", "OpenDoorLoc", "OpenRedBlueDoorsDebug",
    "OpenDoorsOrderN4Debug", "Pickup", "UnblockPickup", "PickupLoc", "PickupDistDebug", "PickupAbove", "PutNextLocalS6N4",
    "PutNextS7N4Carrying", "Unlock", "UnlockLocalDist", "KeyInBox", "UnlockPickupDist", "BlockedUnlockPickup", "UnlockToUnlock",
    "ActionObjDoor", "FindObjS7", "KeyCorridorS6R3", "OneRoomS20", "MoveTwoAcrossS8N9", "SynthS5R2", "SynthLoc", "SynthSeq",
    "MiniBossLevel", "BossLevel", "BossLevelNoUnlock",
)  # fmt: skip
"""Level names by number. The registered id is `BabyAI-<name>-v0`, except for those in SUBSTITUTES.
"""

SUBSTITUTES = {"GoToObjS6": "BabyAI-GoToObjS6-v1"}
"""Levels that minigrid has renamed. minigrid 3 has no GoToObjS6-v0. Its v1 is the same class with
the room size that the name states.
"""

MINIGRID_VERSION = version("minigrid")

WALL = Wall()
"""One wall object shared by all levels. Walls never change, so sharing is safe."""


class _Drawn(int):
    """A random integer that is identical (`is`) to no other, like numpy's.

    Two levels compare random numbers with `is`.
    """


class _QuickGrid(Grid):
    """A grid without coordinate checks.

    Generators, verifiers and an agent inside walls only use valid coordinates.
    """

    def get(self, i: int, j: int) -> WorldObj | None:
        return self.grid[j * self.width + i]

    def set(self, i: int, j: int, v: WorldObj | None) -> None:
        self.grid[j * self.width + i] = v


class QuickLevel(RoomGridLevel):
    """Mixin that generates and steps a level faster. Set `draws` before calling `reset()`."""

    draws: Draws
    walls: tuple[WorldObj | None, ...]

    def gen_obs(self) -> None:
        """Do nothing. `environments.babyai.view` reads observations directly from the grid."""

    def step(self, action: int) -> tuple[None, float, bool, bool, dict[str, Any]]:
        """Perform one minigrid step. The reward is 1 if it completes the mission, else 0."""
        earlier = _first_part_done(self.instrs)
        _, reward, ended, truncated, info = super().step(action)
        if ended and not reward and not earlier and _first_part_done(self.instrs):
            # In strict missions minigrid also checks this action against the second part. It fails
            # there because it opened another door.
            ended = False
        return None, float(reward), ended, truncated, info

    def _reward(self) -> float:
        return 1.0

    def _rand_int(self, low: int, high: int) -> int:
        return _Drawn(self.draws.integer(low, high))

    def _rand_bool(self) -> bool:
        return self.draws.integer(0, 2) == 0

    def _rand_float(self, low: float, high: float) -> float:
        return self.draws.uniform(low, high)

    def _gen_grid(self, width: int, height: int) -> None:
        while True:
            try:
                self._lay_out_rooms(width, height)
                self.gen_mission()
                self.validate_instrs(self.instrs)
            except (RecursionError, RejectSampling):
                continue
            break
        self.surface = self.mission = self.instrs.surface(self)

    def _lay_out_rooms(self, width: int, height: int) -> None:
        self.grid = _QuickGrid(width, height)
        self.grid.grid = list(self.walls)
        draw = self.draws.integer
        span, n_columns, n_rows = self.room_size - 1, self.num_cols, self.num_rows
        rooms = [
            [Room((i * span, j * span), (span + 1, span + 1)) for i in range(n_columns)]
            for j in range(n_rows)
        ]
        for j, row in enumerate(rooms):
            for i, room in enumerate(row):
                x, y = room.top
                # Neighbours and doors: right, down, left, up.
                if i < n_columns - 1:
                    room.neighbors[0] = row[i + 1]
                    room.door_pos[0] = (x + span, draw(y + 1, y + span))
                if j < n_rows - 1:
                    room.neighbors[1] = rooms[j + 1][i]
                    room.door_pos[1] = (draw(x + 1, x + span), y + span)
                if i > 0:
                    room.neighbors[2] = row[i - 1]
                    room.door_pos[2] = row[i - 1].door_pos[0]
                if j > 0:
                    room.neighbors[3] = rooms[j - 1][i]
                    room.door_pos[3] = rooms[j - 1][i].door_pos[1]
        self.room_grid = rooms
        half = self.room_size // 2
        self.agent_pos = (n_columns // 2 * span + half, n_rows // 2 * span + half)
        self.agent_dir = 0

    def place_obj(
        self,
        obj: WorldObj | None,
        top: tuple[int, int] | None = None,
        size: tuple[int, int] | None = None,
        reject_fn: Callable[[Any, tuple[int, int]], bool] | None = None,
        max_tries: float = math.inf,
    ) -> tuple[int, int]:
        """Place an object at a random empty cell of a rectangle. See minigrid's `place_obj`."""
        width, height = self.grid.width, self.grid.height
        left, upper = (0, 0) if top is None else (max(top[0], 0), max(top[1], 0))
        across, down = (width, height) if size is None else size
        right, lower = min(left + across, width), min(upper + down, height)
        draw, cells, agent = self.draws.integer, self.grid.grid, tuple(self.agent_pos)
        tries = 0
        while True:
            if tries > max_tries:
                raise RecursionError("rejection sampling failed in place_obj")
            tries += 1
            position = (draw(left, right), draw(upper, lower))
            at = position[1] * width + position[0]
            if (
                cells[at] is None
                and position != agent
                and not (reject_fn and reject_fn(self, position))
            ):
                break
        cells[at] = obj
        if obj is not None:
            obj.init_pos = obj.cur_pos = position
        return position

    def check_objs_reachable(self, raise_exc: bool = True) -> bool:
        """Return whether every object is reachable without moving another. Doors do not block.

        See minigrid's `check_objs_reachable`.

        Raises:
            RejectSampling: An object is unreachable and `raise_exc` is set.
        """
        width, cells = self.grid.width, self.grid.grid
        start = self.agent_pos[1] * width + self.agent_pos[0]
        reached, frontier = {start}, [start]
        while frontier:
            at = frontier.pop()
            cell = cells[at]
            if cell is not None and cell.type != "door":
                continue
            for near in (at + 1, at - 1, at + width, at - width):
                if near not in reached:
                    reached.add(near)
                    frontier.append(near)
        if all(cell is None or cell is WALL or at in reached for at, cell in enumerate(cells)):
            return True
        if raise_exc:
            raise RejectSampling("an object cannot be reached")
        return False


def make_level(level: int, seed: int) -> QuickLevel:
    """Create a level with layout and mission generated from `seed`.

    Every attribute equals that of `gymnasium.make(id).reset(seed=seed)`, with three exceptions:
    walls are shared, rewards are 1 or 0, and observations are None.
    """
    fresh = copy.copy(_prototype(level))
    fresh.draws = Draws(seed)
    fresh.reset()
    for row in fresh.room_grid:
        for room in row:
            # Only generation needs the neighbours. Without these cycles a level is freed at once.
            room.neighbors = []
    return fresh


def copy_level(level: int, played: QuickLevel) -> QuickLevel:
    """Return a copy of a level in play. Changes to the copy do not affect the original."""
    shared: dict[int, Any] = {id(value): value for value in vars(_prototype(level)).values()}
    shared[id(WALL)] = WALL
    return copy.deepcopy(played, shared)


def discard_level(played: QuickLevel) -> None:
    """Break the reference cycle between a level and its mission's verifiers.

    This frees the memory at once.
    """
    pending: list[Instr] = [played.instrs]
    while pending:
        instruction = pending.pop()
        instruction.env = None
        if isinstance(instruction, SeqInstr):
            pending += [instruction.instr_a, instruction.instr_b]


def _first_part_done(mission: Instr) -> bool:
    if isinstance(mission, AfterInstr):
        return bool(mission.b_done == "success")
    return isinstance(mission, BeforeInstr) and bool(mission.a_done == "success")


@cache
def _prototype(level: int) -> QuickLevel:
    """Return the level as constructed, before any reset. Copies share all attributes set here."""
    name = LEVELS[level]
    spec = gymnasium.spec(SUBSTITUTES.get(name, f"BabyAI-{name}-v0"))
    module, _, attribute = cast(str, spec.entry_point).partition(":")
    base: type[RoomGridLevel] = getattr(import_module(module), attribute)
    made: QuickLevel = type(f"Quick{attribute}", (QuickLevel, base), {})(**spec.kwargs)
    walls = Grid(made.width, made.height)
    span = made.room_size - 1
    for j in range(made.num_rows):
        for i in range(made.num_cols):
            walls.wall_rect(i * span, j * span, span + 1, span + 1)
    made.walls = tuple(WALL if cell else None for cell in walls.grid)
    return made
