"""Conversion of text actions to minigrid's actions, and their execution."""

from __future__ import annotations

from collections.abc import Iterable

from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

from environments.babyai.actions import FORWARD, LEFT, RIGHT, Action, Route, free_places
from environments.babyai.levels import PlayedLevel
from environments.babyai.view import HERE, ROW, View, look


def low_level(action: Action, view: View, direction: int) -> list[int]:
    """Return an available action as minigrid's actions. Empty if nothing is left to do.

    Raises:
        ValueError: No path leads to the route's goal.
    """
    if not isinstance(action, Route):
        return list(action)
    path = find_path(view, direction, action)
    if path is None:
        raise ValueError("the action is not available: no path leads to its goal")
    return path + list(action.then)


def find_path(view: View, direction: int, route: Route) -> list[int] | None:
    """Return the minigrid actions that walk a route, without its `then`. None if no path exists.

    This reproduces AgentGym's breadth-first search. The order is forward, left, right. A state
    reached again before it is expanded keeps the later path.
    """
    free = free_places(view, direction)
    # Ahead, right, back, left.
    moves = (lambda at: at << ROW, lambda at: at << 1, lambda at: at >> ROW, lambda at: at >> 1)
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


def perform_to_the_end(
    played: PlayedLevel, view: View, steps: Iterable[int]
) -> tuple[View, bool, float]:
    """Perform minigrid's actions as AgentGym's wrapper does.

    Execution continues after the mission ends. It stops only at an action that does not change the
    view.

    Args:
        played: The level, changed in place.
        view: The view before the first action.
        steps: minigrid's actions.

    Returns:
        - The view afterwards.
        - Whether the last action ended the mission, as done or failed.
        - minigrid's reward of the last action: 1 - 0.9 steps / limit if it completed the mission,
          else 0. Rewards of earlier actions are lost.
    """
    ended, reward = False, 0.0
    for step in steps:
        # minigrid's original step, without the correction in `PlayedLevel`
        _, won, ended, _, _ = RoomGridLevel.step(played, step)
        reward = 1 - 0.9 * (played.step_count / played.max_steps) if won else 0.0
        before, view = view, look(played)
        if view == before:
            break
    return view, ended, reward


def perform(played: PlayedLevel, view: View, steps: Iterable[int]) -> tuple[View, bool | None]:
    """Perform minigrid's actions until one leaves the view unchanged or ends the mission.

    Args:
        played: The level, changed in place.
        view: The view before the first action.
        steps: minigrid's actions.

    Returns:
        The view afterwards, and the outcome: True if the mission is done, False if it failed, None
            if it is still open.
    """
    for step in steps:
        _, reward, ended, _, _ = played.step(step)
        before, view = view, look(played)
        if ended:
            return view, bool(reward)
        if view == before:
            break
    return view, None
