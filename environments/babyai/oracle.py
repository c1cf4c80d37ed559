"""The oracle: minigrid's bot, with its steps grouped into text actions.

The bot plays a copy of the level to the end, step by step. The oracle picks the text action that
gets furthest along this path. If none does, it picks the text action for the bot's next step. The
bot has seen only what the agent has seen, with one exception: it has access to which box holds a
key.

In some states the bot raises assertions or plans forever. Its plans are therefore bounded, and a
new bot starts where one gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from minigrid.core.world_object import WorldObj
from minigrid.envs.babyai.core.verifier import AfterInstr, Instr, ObjDesc, PutNextInstr, SeqInstr
from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError, DropSubgoal, GoNextToSubgoal

from environments.babyai.actions import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, Action
from environments.babyai.levels import PlayedLevel, copy_level
from environments.babyai.steps import low_level, perform
from environments.babyai.view import FRONT, View, name_of
from environments.environment import OracleError

MAX_STEPS = 1500
"""Maximum number of steps in a plan."""
MAX_SUBGOALS = 50
"""Maximum number of subgoals that the bot may add before its next step. Successful planning adds at
most 10.
"""

_WORDS = {
    LEFT: "turn left",
    RIGHT: "turn right",
    FORWARD: "move forward",
    DROP: "drop",
    TOGGLE: "toggle",
}


class _CirclingError(Exception):
    """The bot plans in circles."""


_BOT_FAULTS = (
    _CirclingError,
    DisappearedBoxError,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
)
"""Exceptions that the bot raises in unsupported states."""


class _BoundedStack(list[Any]):
    """The bot's stack of subgoals, with a limit on additions.

    Every endless loop of the bot adds subgoals without end.
    """

    added = 0

    def append(self, subgoal: Any) -> None:
        self.added += 1
        if self.added > MAX_SUBGOALS:
            raise _CirclingError
        super().append(subgoal)


class _Bot(BabyAIBot):
    """minigrid's bot, but it prefers to explore a locked door whose key it has seen.

    Otherwise it may loop: open door A with a key behind door B, and door B with the key behind door
    A.
    """

    def _shortest_path(self, accept_fn: Callable[..., Any], try_with_blockers: bool = False) -> Any:
        if accept_fn.__name__ == "unopened_door":
            within_reach = super()._shortest_path(
                lambda at, cell: accept_fn(at, cell) and self._knows_key(cell), try_with_blockers
            )
            if within_reach[0] is not None:
                return within_reach
        return super()._shortest_path(accept_fn, try_with_blockers)

    def _knows_key(self, door: WorldObj) -> bool:
        carried = self.mission.carrying
        if carried is not None and carried.type == "key" and carried.color == door.color:
            return True
        _, places = ObjDesc("key", door.color).find_matching_objs(self.mission)
        return any(self.vis_mask[at] for at in places)


@dataclass(frozen=True)
class Plan:
    """A path to the end of the mission.

    Attributes:
        steps: minigrid's actions.
        done_at: State -> number of steps before its last visit, for each state except the end.
        poses: Position and direction -> number of steps before its last visit.
        end: Position and direction at the end.
    """

    steps: list[int]
    done_at: Mapping[Hashable, int]
    poses: Mapping[Hashable, int]
    end: tuple[int, int, int]


class Oracle:
    """Plays one level. The plan is reused while the level stays on its path."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._plan: Plan | None = None

    def action(self, played: PlayedLevel, view: View, available: Mapping[str, Action]) -> str:
        """Return the text action to take now.

        Raises:
            OracleError: The bot finds no path from here.
        """
        state = state_of(played)
        if self._plan is None or state not in self._plan.done_at:
            self._plan = make_plan(self._level, played)
        plan = self._plan
        done = plan.done_at[state]
        # At the end, an action that names the mission's object is better than the bot's last step.
        best, best_done = _words(plan.steps[done], view), min(done + 1, len(plan.steps) - 1)
        candidates = []
        for words, action in available.items():
            steps = low_level(action, view, int(played.agent_dir))
            poses = _poses(played, steps)
            promised = len(plan.steps) if plan.end in poses else plan.poses.get(poses[-1], 0)
            if promised > best_done:
                candidates.append((-promised, len(steps), words, steps))
        for promised, _, words, steps in sorted(candidates):
            if -promised <= best_done:
                break
            reached = self._done_after(plan, played, view, steps)
            if reached > best_done:
                best, best_done = words, reached
        return best

    def _done_after(self, plan: Plan, played: PlayedLevel, view: View, steps: list[int]) -> int:
        """Return the number of plan steps completed after `steps`. 0 if they leave the plan."""
        copied = copy_level(self._level, played)
        _, won = perform(copied, view, steps)
        if won is not None:
            return len(plan.steps) if won else 0
        return plan.done_at.get(state_of(copied), 0)


def make_plan(level: int, played: PlayedLevel) -> Plan:
    """Return the bot's path from the state of `played`, which stays unchanged.

    Raises:
        OracleError: The bot finds no path.
    """
    copied = copy_level(level, played)
    steps: list[int] = []
    done_at: dict[Hashable, int] = {state_of(copied): 0}
    poses: dict[Hashable, int] = {}
    seen = np.zeros((copied.width, copied.height), dtype=bool)
    begun_at, why = -1, ""
    # Stop without progress, because a new bot would give up at the same state.
    while len(steps) > begun_at:
        begun_at = len(steps)
        try:
            # A bot may stop before the mission is done, because it faces its goal from the start.
            # The extra left turn makes the next bot turn back to it.
            for step in chain(_bot_steps(copied, seen), (LEFT,)):
                _, reward, ended, _, _ = copied.step(step)
                steps.append(step)
                if ended and reward:
                    return Plan(steps, done_at, poses, _pose(copied))
                if ended:
                    raise OracleError("minigrid's bot failed the mission")
                if len(steps) >= MAX_STEPS:
                    raise OracleError(f"minigrid's bot did not end within {MAX_STEPS} steps")
                done_at[state_of(copied)] = poses[_pose(copied)] = len(steps)
        except _BOT_FAULTS as fault:
            why = f"{type(fault).__name__} {fault}".strip()
    raise OracleError(f"minigrid's bot found no way: {why}")


def _bot_steps(played: PlayedLevel, seen: np.ndarray[Any, Any]) -> Iterator[int]:
    """Yield the steps of a new bot until it considers the mission done.

    The caller must perform each step before requesting the next.

    Args:
        played: The level that the bot observes.
        seen: Cells that earlier bots have seen, updated in place. Shape (width, height).
    """
    boxes = [
        cell
        for cell in played.grid.grid
        if cell is not None and cell.type == "box" and cell.contains is not None
    ]
    for box in boxes:
        if played.carrying is not None:
            yield from _follow(_bot(played, seen, drop=True))
        yield from _follow(_bot(played, seen, box))
        yield TOGGLE
    yield from _follow(_bot(played, seen))


def _bot(
    played: PlayedLevel,
    seen: np.ndarray[Any, Any],
    target: WorldObj | None = None,
    drop: bool = False,
) -> BabyAIBot:
    """Return a bot that performs the mission.

    Args:
        played: The level that the bot observes.
        seen: Cells that earlier bots have seen, updated in place. Shape (width, height).
        target: If given, the bot only walks up to this object.
        drop: If set, the bot only drops the carried object.
    """
    bot = _Bot(played)
    bot.vis_mask = seen
    mission, bot.stack = bot.stack, _BoundedStack()
    bot._process_obs()
    if target is not None:
        bot.stack.append(GoNextToSubgoal(bot, target))
        return bot
    if not drop:
        bot.stack.extend(mission)
    carried = played.carrying
    if carried is None:
        return bot
    first = _first_part(played.instrs)
    if (
        not drop
        and isinstance(first, PutNextInstr)
        and any(carried is thing for thing in first.desc_move.obj_set)
    ):
        del bot.stack[-2:]  # the carried object need not be fetched
        return bot
    bot.stack.append(DropSubgoal(bot))
    bot.stack.append(GoNextToSubgoal(bot, bot._find_drop_pos()))
    return bot


def _follow(bot: BabyAIBot) -> Iterator[int]:
    step: int | None = None
    while bot.stack:
        bot.stack.added = 0
        step = int(bot.replan(step))
        if not bot.stack:
            return
        yield step


def _first_part(mission: Instr) -> Instr:
    """Return the part of a mission that a bot starts with."""
    while isinstance(mission, SeqInstr):
        mission = mission.instr_b if isinstance(mission, AfterInstr) else mission.instr_a
    return mission


def state_of(played: PlayedLevel) -> Hashable:
    """Return everything that determines the rest of the episode.

    It holds the agent, every object with its initial position, and the progress of the mission.
    """
    things = tuple(
        (at, name_of(cell), cell.init_pos)
        for at, cell in enumerate(played.grid.grid)
        if cell is not None and cell.type != "wall"
    )
    carried = played.carrying
    return (
        _pose(played),
        things,
        carried and (name_of(carried), carried.init_pos),
        _progress(played.instrs),
    )


def _progress(mission: Instr) -> Hashable:
    if not isinstance(mission, SeqInstr):
        return None
    return (
        mission.a_done == "success",
        mission.b_done == "success",
        _progress(mission.instr_a),
        _progress(mission.instr_b),
    )


def _pose(played: PlayedLevel) -> tuple[int, int, int]:
    x, y = played.agent_pos
    return int(x), int(y), int(played.agent_dir)


def _poses(played: PlayedLevel, steps: list[int]) -> list[tuple[int, int, int]]:
    """Return the poses before the first and after each step, as if nothing blocked the agent."""
    x, y, direction = _pose(played)
    poses = [(x, y, direction)]
    for step in steps:
        if step == FORWARD:
            x += (1, 0, -1, 0)[direction]
            y += (0, 1, 0, -1)[direction]
        elif step in (LEFT, RIGHT):
            direction = (direction + (1 if step == RIGHT else -1)) % 4
        poses.append((x, y, direction))
    return poses


def _words(step: int, view: View) -> str:
    """Return a single step as a text action."""
    if step != PICKUP:
        return _WORDS[step]
    [thing] = [thing for thing in view.things if thing.at == FRONT]
    return f"pickup {thing.label}"
