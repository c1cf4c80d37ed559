"""From an action to minigrid's own actions, and performing them."""

from __future__ import annotations

from collections.abc import Iterable

from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

from environments.babyai.actions import FORWARD, LEFT, RIGHT, Action, Route, free_places
from environments.babyai.levels import QuickLevel
from environments.babyai.view import HERE, ROW, View, look


def low_level(action: Action, view: View, direction: int) -> list[int]:
    """What an available action comes down to in minigrid's actions; none when nothing is left to do."""
    if not isinstance(action, Route):
        return list(action)
    path = find_path(view, direction, action)
    if path is None:
        raise ValueError("the action is not available: no path leads to its goal")
    return path + list(action.then)


def find_path(view: View, direction: int, route: Route) -> list[int] | None:
    """The minigrid actions that walk a route, without its `then`; None when there is no path.

    This is AgentGym's breadth-first search: forward before left before right, and a state that is found again before its turn has come
    takes the later way.
    """
    free = free_places(view, direction)
    moves = (lambda at: at << ROW, lambda at: at << 1, lambda at: at >> ROW, lambda at: at >> 1)  # ahead, right, back, left
    start = (HERE, 0)
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    settled: set[tuple[int, int]] = set()
    queue = [start]
    for state in queue:
        settled.add(state)
        at, heading = state
        if (at if route.arrive else moves[heading](at)) == route.goal:
            path: list[int] = []
            while state != start:
                state, action = came_from[state]
                path.append(action)
            return path[::-1]
        for action, after in (
            (FORWARD, (moves[heading](at), heading)),
            (LEFT, (at, (heading - 1) % 4)),
            (RIGHT, (at, (heading + 1) % 4)),
        ):
            if after[0] & free and after not in settled:
                queue.append(after)
                came_from[after] = (state, action)
    return None


def perform_to_the_end(played: QuickLevel, view: View, steps: Iterable[int]) -> tuple[View, bool, float]:
    """Performs minigrid's actions as AgentGym's wrapper does: whatever the mission comes to, until one changes nothing in view.

    Args:
        view: What is seen before.

    Returns:
        What is seen afterwards; whether the last action ended the mission, done or failed; and minigrid's reward of that action:
        1 - 0.9 steps / limit where it did the mission, else 0. What an action before the last one earned is lost.
    """
    ended, reward = False, 0.0
    for step in steps:
        # minigrid's own step, without what `QuickLevel` mends in it
        _, won, ended, _, _ = RoomGridLevel.step(played, step)
        reward = 1 - 0.9 * (played.step_count / played.max_steps) if won else 0.0
        before, view = view, look(played)
        if view == before:
            break
    return view, ended, reward


def perform(played: QuickLevel, view: View, steps: Iterable[int]) -> tuple[View, bool | None]:
    """Performs minigrid's actions until one changes nothing in view or ends the mission.

    Args:
        view: What is seen before.

    Returns:
        What is seen afterwards; True when the mission is done, False when it has failed, None while it goes on.
    """
    for step in steps:
        _, reward, ended, _, _ = played.step(step)
        before, view = view, look(played)
        if ended:
            return view, bool(reward)
        if view == before:
            break
    return view, None
