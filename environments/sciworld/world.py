"""SciWorld: a text agent performs elementary science experiments in a house of ten places."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping

from configs.rules import Rules
from environments.action_text import without_punctuation
from environments.environment import (
    Environment,
    EpisodeOverError,
    OracleError,
    Step,
    World,
    version_under,
)
from environments.sciworld.frames import (
    Answer,
    RefusedRequestError,
    SimulatorError,
    SimulatorGoneError,
)
from environments.sciworld.pool import EPISODES_PER_PROCESS, SESSIONS_PER_PROCESS, SimulatorPool
from environments.sciworld.simulator import ANSWER_S, EXPERT_S, Simulator
from environments.sciworld.tasks import VERSION, Task, task, task_lists
from environments.sciworld.tools import TOOLS

log = logging.getLogger(__name__)

MAX_CHARACTERS = 500
THING = "OBJ"
"""Placeholder for an object in the package's action templates."""
NO_MOVES = ("reset task",)
"""Action templates that are not moves of a task."""
FAILED = -1.0
"""AgentGym's score of a failed task. AgentGym's server gives it as -100 of 100."""
ATTEMPTS = 3
"""Number of simulators to try for a request if one after another ends."""
BROKEN = "That cannot be done: the simulation breaks down over it. Everything is as it was before."

_numbers = itertools.count()


class SciWorldEnvironment(Environment):
    """One session. It records its actions to rebuild the episode if its simulator ends.

    Attributes:
        task: Task of the episode. None before the first reset and after close.
        task_description: The task's description in the package's words.
        score: Highest progress of the episode, from 0 to 1. A failed task keeps its score. Under
            AgentGym's rules it is the current progress, and -1 once the task has failed.
    """

    def __init__(
        self, pool: SimulatorPool, solutions: dict[Task, tuple[str, ...]], rules: Rules = "ours"
    ) -> None:
        """
        Args:
            pool: Source of simulators.
            solutions: Cache of the expert's actions per task, shared by all sessions of an
                environment.
            rules: Scoring rules of a failed task.
        """
        self._rules = rules
        self.task: Task | None = None
        self.task_description = ""
        self.score = 0.0
        self._pool = pool
        self._solutions = solutions
        self._number = next(_numbers)
        self._simulator: Simulator | None = None
        self._actions: list[str] = []
        self._over = True

    def reset(self, index: int) -> str:
        """Start task `index`. See `Environment.reset`.

        Returns:
            The task description and the result of "look around".
        """
        self.task = task(index)
        self.score = 0.0
        self._actions = []
        observation = self._rebuild()
        self._over = False
        return f"{self.task_description}\n{observation}"

    def step(self, action: str) -> Step:
        """Perform one action. See `Environment.step`.

        The reward is the increase of the score, which is never negative under our rules. The
        simulator ends the episode when the task is done, or has failed for good.

        Raises:
            SimulatorGoneError: Several simulators in a row ended during this action.
        """
        if self._over:
            raise EpisodeOverError("no SciWorld episode is in progress; reset first")
        if len(action) > MAX_CHARACTERS:
            return Step(
                f"The action has {len(action)} characters; at most {MAX_CHARACTERS} are read.",
                0.0,
                False,
                refused=True,
            )
        # AgentGym's client for SciWorld sends the text unchanged.
        if self._rules == "ours":
            action = without_punctuation(action)
        try:
            answer = self._ask("s", self._number, action)
        except RefusedRequestError as fault:
            log.warning(
                "the simulator failed on an action",
                extra={"task": str(self.task), "fault": str(fault)},
            )
            self._rebuild()
            return Step(BROKEN, 0.0, False, refused=True)
        self._actions.append(action)
        observation = answer.text()
        progress = answer.real()
        completed = answer.flag()
        refused = answer.flag()
        if self._rules == "ours":
            score = max(progress, self.score)
        else:
            score = progress if progress >= 0 else FAILED
        reward, self.score = score - self.score, score
        self._over = completed or progress < 0
        return Step(observation, reward, self._over, refused)

    def oracle_action(self) -> str:
        """Return the next action of the package's expert. See `Environment.oracle_action`.

        The expert has one solution from the start of the task and cannot recover from other
        actions.
        """
        if self._over or self.task is None:
            raise OracleError("no SciWorld episode is in progress")
        if self.task not in self._solutions:
            name, variation = self.task.name, self.task.variation
            answer = self._ask("g", name, variation, deadline_s=EXPERT_S)
            self._solutions[self.task] = tuple(answer.text() for _ in range(answer.integer()))
        solution, done = self._solutions[self.task], len(self._actions)
        if list(solution[:done]) != self._actions:
            raise OracleError(
                "the expert solves a task only from its start, and this episode has left the "
                "expert's solution"
            )
        if done == len(solution):
            raise OracleError("the expert's solution has no further action")
        return solution[done]

    @property
    def objective(self) -> str:
        """The task's description in the package's words."""
        return self.task_description

    def valid_actions(self) -> list[str]:
        """Return all actions that take at most one object. See `Environment.valid_actions`.

        These are the package's action templates, each combined with every object in sight.
        """
        hints = json.loads(self.hints())
        forms = [
            form
            for form in hints["possible_actions"]
            if form.count(THING) <= 1 and form not in NO_MOVES
        ]
        return list(
            dict.fromkeys(
                form.replace(THING, thing) for form in forms for thing in hints["possible_objects"]
            )
        )

    @property
    def task_name(self) -> str:
        """The package's name of the kind of task. Empty without a task."""
        return self.task.name if self.task else ""

    @property
    def variation(self) -> int:
        """The variation of the kind of task, from 0. -1 without a task."""
        return self.task.variation if self.task else -1

    def hints(self) -> str:
        """Return action templates, objects in sight and goal progress as JSON."""
        if self._over:
            raise EpisodeOverError("no SciWorld episode is in progress; reset first")
        answer = self._ask("h", self._number)
        return json.dumps(
            {
                "possible_actions": answer.text().split("\n"),
                "possible_objects": answer.text().split("\n"),
                "goals": answer.text(),
            }
        )

    def close(self) -> None:
        """End the episode."""
        self.task = None
        self._over = True
        self._actions = []
        simulator, self._simulator = self._simulator, None
        if simulator is not None:
            simulator.tell("e", self._number)
            self._pool.release(simulator)

    def _rebuild(self) -> str:
        """Start the task, replay the actions so far, and return the first observation."""
        assert self.task is not None
        for attempt in itertools.count(1):
            self._simulator = self._pool.assign(self._simulator)
            try:
                begun = self._simulator.ask("b", self._number, self.task.name, self.task.variation)
                for action in self._actions:
                    self._simulator.ask("s", self._number, action)
            except SimulatorGoneError:
                if attempt == ATTEMPTS:
                    raise
            else:
                self.task_description = begun.text()
                return begun.text()
        raise AssertionError

    def _ask(self, operation: str, *arguments: int | str, deadline_s: float = ANSWER_S) -> Answer:
        """Send a request to the session's simulator.

        If the simulator ends, the session is rebuilt in another one and the request is sent again.
        """
        assert self._simulator is not None
        for attempt in itertools.count(1):
            try:
                return self._simulator.ask(operation, *arguments, deadline_s=deadline_s)
            except SimulatorGoneError as gone:
                log.warning(
                    "rebuilding a session in another simulator",
                    extra={"task": str(self.task), "turn": len(self._actions), "fault": str(gone)},
                )
                if attempt == ATTEMPTS:
                    raise
                self._rebuild()
        raise AssertionError


class SciWorld(World):
    """The SciWorld environment. See `World` and `environments.sciworld.tasks.task_lists`."""

    name = "sciworld"
    tools = TOOLS
    oracle_recovers = False
    blocking = True
    instruction = (
        "You work on an elementary science task in a simulated house: a kitchen, a bathroom, a "
        "living room, a bedroom, a workshop, an art "
        "studio, a greenhouse, a foundry and a hallway, with an outside. The first message names "
        "the task and shows where you are. "
        "Answer every message with one action, where OBJ is an object as the messages call it:\n"
        "look around | look at OBJ | look in OBJ | inventory | task\n"
        "open OBJ | close OBJ | go to PLACE (the door to it must be open)\n"
        "pick up OBJ | put down OBJ | move OBJ to OBJ | pour OBJ into OBJ | dunk OBJ into OBJ | "
        "mix OBJ (what is in a container)\n"
        "activate OBJ | deactivate OBJ | use OBJ | use OBJ on OBJ | connect OBJ to OBJ | "
        "disconnect OBJ | read OBJ | eat OBJ | flush OBJ\n"
        "focus on OBJ: only what the task asks you to focus on, when it asks for it; the wrong "
        "object fails the task\n"
        "wait (ten moments) | wait1 (one moment)\n"
        "If an action could mean several things, they are listed with numbers: answer with the "
        "number. "
        "Steps towards the goal earn a part of the reward; the task is done when the whole goal is "
        "reached."
    )

    def __init__(
        self,
        processes: int | None = None,
        episodes: int = EPISODES_PER_PROCESS,
        rules: Rules = "ours",
    ) -> None:
        """
        Args:
            processes: Number of simulators. None means the number of CPU cores, at most
                `MOST_PROCESSES` (pool.py).
            episodes: Number of episodes after which a simulator is replaced.
            rules: Under "agentgym" a failed task scores -1, regardless of its progress. See
                `SciWorldEnvironment`.
        """
        self.rules = rules
        self.version = version_under(rules, VERSION)
        self.reward_range = (0.0, 1.0) if rules == "ours" else (FAILED - 1.0, 1.0)
        self._pool = SimulatorPool(processes, episodes)
        self._solutions: dict[Task, tuple[str, ...]] = {}
        self.max_sessions = self._pool.processes * SESSIONS_PER_PROCESS

    def create(self) -> SciWorldEnvironment:
        """Return a new session, before its first reset."""
        return SciWorldEnvironment(self._pool, self._solutions, self.rules)

    def prepare(self) -> None:
        """Start the simulators, which takes some seconds."""
        try:
            self._pool.start()
        except SimulatorError as fault:
            log.error("the simulators cannot be started: %s", fault)

    @property
    def lists(self) -> Mapping[str, tuple[int, ...]]:
        """All task lists, each in ascending order."""
        return task_lists()

    def close(self) -> None:
        """End the simulators. They also exit when this process does."""
        self._pool.end()
