"""Play an episode in the terminal: a person acts as the policy."""

from __future__ import annotations

import sys

from configs.rules import Rules
from environments.environment import OracleError, TaskIndexError
from environments.registry import load_world

HINT = "?"


def play_episode(name: str, task: int | None, rules: Rules = "ours") -> int:
    """Read one action per line until the episode ends, and return the exit status.

    A line with only "?" prints the oracle's action.
    """
    world = load_world(name, rules)
    say = sys.stdout.write
    session = world.create()
    try:
        observation = session.reset(world.tasks("train")[0] if task is None else task)
    except TaskIndexError as missing:
        sys.stderr.write(f"{missing}\n")
        return 2
    say(f"{world.instruction}\n\n{observation}\n\n({HINT} asks the expert, Ctrl-D ends)\n> ")
    sys.stdout.flush()
    score, turns = 0.0, 0
    try:
        for line in sys.stdin:
            if line.strip() == HINT:
                try:
                    say(f"the expert would: {session.oracle_action()}\n> ")
                except OracleError as unknown:
                    say(f"the expert does not know: {unknown}\n> ")
                sys.stdout.flush()
                continue
            step = session.step(line.rstrip("\n"))
            turns, score = turns + 1, score + step.reward
            say(f"{step.observation}\n")
            if step.done:
                break
            say("> ")
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    finally:
        session.close()
    say(f"\nscore {score:g} after {turns} actions\n")
    return 0
