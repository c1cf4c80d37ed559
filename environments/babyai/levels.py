"""The forty levels in AgentGym's numbering, and their generation from a seed.

Levels are minigrid's own. Left out are an encoded image after every step, a new construction of
gymnasium's spaces for every episode, and a printed message for every rejected layout.
"""

from __future__ import annotations

import copy
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, cast

import gymnasium
import minigrid  # noqa: F401  (registers the levels)
from minigrid.core.roomgrid import RoomGrid
from minigrid.core.world_object import Wall
from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.envs.babyai.core.verifier import AfterInstr, BeforeInstr, Instr, SeqInstr

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


class PlayedLevel(RoomGridLevel):
    """Mixin for levels that are played as text."""

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

    def _gen_grid(self, width: int, height: int) -> None:
        while True:
            try:
                RoomGrid._gen_grid(self, width, height)
                self.gen_mission()
                self.validate_instrs(self.instrs)
            except (RecursionError, RejectSampling):
                continue
            break
        self.surface = self.mission = self.instrs.surface(self)


def make_level(level: int, seed: int) -> PlayedLevel:
    """Create a level with layout and mission generated from `seed`.

    Layout and mission equal those of `gymnasium.make(id).reset(seed=seed)`.
    """
    fresh = copy.copy(_prototype(level))
    fresh.reset(seed=seed)
    for row in fresh.room_grid:
        for room in row:
            # Only generation needs the neighbours. Without these cycles a level is freed at once.
            room.neighbors = []
    return fresh


def copy_level(level: int, played: PlayedLevel) -> PlayedLevel:
    """Return a copy of a level in play. Changes to the copy do not affect the original."""
    walls = [cell for cell in played.grid.grid if isinstance(cell, Wall)]  # they never change
    return copy.deepcopy(
        played, {id(each): each for each in (*vars(_prototype(level)).values(), *walls)}
    )


def discard_level(played: PlayedLevel) -> None:
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
def _prototype(level: int) -> PlayedLevel:
    """Return the level as constructed. Copies share all attributes that a reset does not set."""
    name = LEVELS[level]
    spec = gymnasium.spec(SUBSTITUTES.get(name, f"BabyAI-{name}-v0"))
    module, _, attribute = cast(str, spec.entry_point).partition(":")
    base: type[RoomGridLevel] = getattr(import_module(module), attribute)
    made: PlayedLevel = type(f"Played{attribute}", (PlayedLevel, base), {})(**spec.kwargs)
    return made
