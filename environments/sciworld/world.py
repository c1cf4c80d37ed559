"""SciWorld: an agent does elementary science experiments in a house of ten places, in text."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from configs.rules import Rules
from environments.action_text import without_punctuation
from environments.environment import EpisodeOverError, OracleError, Step, version_under
from environments.sciworld.frames import Answer, RefusedRequestError, SimulatorError, SimulatorGoneError
from environments.sciworld.pool import EPISODES_PER_PROCESS, SESSIONS_PER_PROCESS, SimulatorPool
from environments.sciworld.simulator import ANSWER_S, EXPERT_S, Simulator
from environments.sciworld.tasks import VERSION, Task, task, task_list

log = logging.getLogger(__name__)

MAX_CHARACTERS = 500
THING = "OBJ"
"""What stands for a thing in the package's forms of actions."""
NO_MOVES = ("reset task",)
"""Forms of actions that are none."""
FAILED = -1.0
"""AgentGym's score of a failed task, which there is -100 of 100."""
ATTEMPTS = 3
"""Simulators that a request is tried in, should one after another end under it."""
BROKEN = "That cannot be done: the simulation breaks down over it. Everything is as it was before."

T = TypeVar("T")
Ask = Callable[..., Awaitable[Answer]]
"""How a simulator is asked, by its own arguments: `Simulator.asked`, or `_ask_now`, which waits without an event loop."""

_numbers = itertools.count()


class SciWorldEnvironment:
    """One session. It keeps the actions of its episode, so that the episode can be built again should its simulator end.

    Attributes:
        task: What the episode is about; None before the first reset and after the end.
        task_description: What the agent has to do, in the package's words.
        score: What the episode has earned, from 0 to 1: the most progress that there was. A failed task keeps what it had earned. Under
            AgentGym's rules it is the progress as it stands, and -1 once the task has failed.
    """

    def __init__(self, pool: SimulatorPool, ways: dict[Task, tuple[str, ...]], rules: Rules = "ours") -> None:
        """
        Args:
            pool: Where simulators come from.
            ways: What the expert does in each task, as far as it was asked; shared by the sessions of a world.
            rules: What a failed task is worth.
        """
        self._rules = rules
        self.task: Task | None = None
        self.task_description = ""
        self.score = 0.0
        self._pool = pool
        self._ways = ways
        self._number = next(_numbers)
        self._simulator: Simulator | None = None
        self._actions: list[str] = []
        self._over = True

    def reset(self, index: int) -> str:
        """Begins task `index`: its description, and what "look around" shows; see `Environment.reset`."""
        return _at_once(self._reset(index, _ask_now))

    def reset_awaited(self, index: int) -> Awaitable[str]:
        """As `reset`, on the running event loop."""
        return self._reset(index, Simulator.asked)

    async def _reset(self, index: int, ask: Ask) -> str:
        self.task = task(index)
        self.score = 0.0
        self._actions = []
        observation = await self._rebuild(ask)
        self._over = False
        return f"{self.task_description}\n{observation}"

    def step(self, action: str) -> Step:
        """Performs one action; see `Environment.step`. What the action adds to the score is its reward: by our rules never negative.

        The episode ends when the simulator says so: the task is done, or has failed and cannot be done any more.

        Raises:
            SimulatorGoneError: One simulator after another ended under this action.
        """
        return _at_once(self._step(action, _ask_now))

    def step_awaited(self, action: str) -> Awaitable[Step]:
        """As `step`, on the running event loop."""
        return self._step(action, Simulator.asked)

    async def _step(self, action: str, ask: Ask) -> Step:
        if self._over:
            raise EpisodeOverError("no SciWorld episode is in progress; reset first")
        if len(action) > MAX_CHARACTERS:
            return Step(f"The action has {len(action)} characters; at most {MAX_CHARACTERS} are read.", 0.0, False, refused=True)
        if self._rules == "ours":  # AgentGym's client of SciWorld sends what stands there
            action = without_punctuation(action)
        try:
            answer = await self._ask(lambda simulator: ask(simulator, "s", self._number, action), ask)
        except RefusedRequestError as fault:
            log.warning("the simulation broke down over an action", extra={"task": str(self.task), "fault": str(fault)})
            await self._rebuild(ask)
            return Step(BROKEN, 0.0, False, refused=True)
        self._actions.append(action)
        observation, progress, completed, refused = answer.text(), answer.real(), answer.flag(), answer.flag()
        if self._rules == "ours":
            score = max(progress, self.score)
        else:
            score = progress if progress >= 0 else FAILED
        reward, self.score = score - self.score, score
        self._over = completed or progress < 0
        return Step(observation, reward, self._over, refused)

    def oracle_action(self) -> str:
        """What the package's expert does next; see `Environment.oracle_action`. It knows one way from the start and cannot leave it."""
        if self._over or self.task is None:
            raise OracleError("no SciWorld episode is in progress")
        if self.task not in self._ways:
            name, variation = self.task.name, self.task.variation
            answer = _at_once(self._ask(lambda simulator: _ask_now(simulator, "g", name, variation, deadline_s=EXPERT_S), _ask_now))
            self._ways[self.task] = tuple(answer.text() for _ in range(answer.integer()))
        way, done = self._ways[self.task], len(self._actions)
        if list(way[:done]) != self._actions:
            raise OracleError("the expert knows the way only from the start of the task, and this episode has left it")
        if done == len(way):
            raise OracleError("the expert knows no further action")
        return way[done]

    @property
    def objective(self) -> str:
        """What the agent has to do, in the package's words."""
        return self.task_description

    def valid_actions(self) -> list[str]:
        """Each of the package's actions that take one thing or none, with each thing in sight; see `EnumerableEnvironment`."""
        hints = json.loads(self.hints())
        forms = [form for form in hints["possible_actions"] if form.count(THING) <= 1 and form not in NO_MOVES]
        return list(dict.fromkeys(form.replace(THING, thing) for form in forms for thing in hints["possible_objects"]))

    @property
    def task_name(self) -> str:
        """The package's name of the kind of task."""
        return self.task.name if self.task else ""

    @property
    def variation(self) -> int:
        """Which variation of the kind of task."""
        return self.task.variation if self.task else -1

    def hints(self) -> str:
        """The forms of the actions, the objects in sight and the progress by the package's goals, as JSON."""
        if self._over:
            raise EpisodeOverError("no SciWorld episode is in progress; reset first")
        answer = _at_once(self._ask(lambda simulator: _ask_now(simulator, "h", self._number), _ask_now))
        return json.dumps(
            {"possible_actions": answer.text().split("\n"), "possible_objects": answer.text().split("\n"), "goals": answer.text()}
        )

    def close(self) -> None:
        """Ends the episode."""
        self.task = None
        self._over = True
        self._actions = []
        simulator, self._simulator = self._simulator, None
        if simulator is not None:
            simulator.tell("e", self._number)
            self._pool.leave(simulator)

    async def _rebuild(self, ask: Ask) -> str:
        """Begins the task and performs the actions so far; returns the first observation."""
        assert self.task is not None
        for attempt in itertools.count(1):
            self._simulator = self._pool.place(self._simulator)
            try:
                begun = await ask(self._simulator, "b", self._number, self.task.name, self.task.variation)
                for action in self._actions:
                    await ask(self._simulator, "s", self._number, action)
            except SimulatorGoneError:
                if attempt == ATTEMPTS:
                    raise
            else:
                self.task_description = begun.text()
                return begun.text()
        raise AssertionError

    async def _ask(self, request: Callable[[Simulator], Awaitable[Answer]], ask: Ask) -> Answer:
        """What the session's simulator answers; should it end, the session is built again in another, which is asked then."""
        assert self._simulator is not None
        for attempt in itertools.count(1):
            try:
                return await request(self._simulator)
            except SimulatorGoneError as gone:
                log.warning("a session is built again", extra={"task": str(self.task), "turn": len(self._actions), "fault": str(gone)})
                if attempt == ATTEMPTS:
                    raise
                await self._rebuild(ask)
        raise AssertionError


async def _ask_now(simulator: Simulator, operation: str, *arguments: int | str, deadline_s: float = ANSWER_S) -> Answer:
    return simulator.ask(operation, *arguments, deadline_s=deadline_s)


def _at_once(work: Coroutine[None, None, T]) -> T:
    """The result of what waits for nothing on an event loop."""
    try:
        work.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    raise AssertionError("this waits on an event loop")


class SciWorld:
    """The world; see `World`. `tasks` also knows the lists of `environments.sciworld.tasks.task_lists`."""

    name = "sciworld"
    oracle_recovers = False
    blocking = True
    awaited = True
    instruction = (
        "You work on an elementary science task in a simulated house: a kitchen, a bathroom, a living room, a bedroom, a workshop, an art "
        "studio, a greenhouse, a foundry and a hallway, with an outside. The first message names the task and shows where you are. "
        "Answer every message with one action, where OBJ is an object as the messages call it:\n"
        "look around | look at OBJ | look in OBJ | inventory | task\n"
        "open OBJ | close OBJ | go to PLACE (the door to it must be open)\n"
        "pick up OBJ | put down OBJ | move OBJ to OBJ | pour OBJ into OBJ | dunk OBJ into OBJ | mix OBJ (what is in a container)\n"
        "activate OBJ | deactivate OBJ | use OBJ | use OBJ on OBJ | connect OBJ to OBJ | disconnect OBJ | read OBJ | eat OBJ | flush OBJ\n"
        "focus on OBJ: only what the task asks you to focus on, when it asks for it; the wrong object fails the task\n"
        "wait (ten moments) | wait1 (one moment)\n"
        "If an action could mean several things, they are listed with numbers: answer with the number. "
        "Steps towards the goal earn a part of the reward; the task is done when the whole goal is reached."
    )

    def __init__(self, processes: int | None = None, episodes: int = EPISODES_PER_PROCESS, rules: Rules = "ours") -> None:
        """
        Args:
            processes: Simulators at once; None means the number of processors.
            episodes: Episodes after which a simulator is replaced by a fresh one.
            rules: Under "agentgym" a failed task is worth -1, whatever it had earned; see `SciWorldEnvironment`.
        """
        self.rules = rules
        self.version = version_under(rules, VERSION)
        self.reward_range = (0.0, 1.0) if rules == "ours" else (FAILED - 1.0, 1.0)
        self._pool = SimulatorPool(processes, episodes)
        self._ways: dict[Task, tuple[str, ...]] = {}
        self.max_sessions = self._pool.processes * SESSIONS_PER_PROCESS

    def create(self) -> SciWorldEnvironment:
        """A new session, before its first reset."""
        return SciWorldEnvironment(self._pool, self._ways, self.rules)

    def prepare(self) -> None:
        """Starts the simulators, which takes some seconds."""
        try:
            self._pool.start()
        except SimulatorError as fault:
            log.error("the simulators cannot be started: %s", fault)

    def tasks(self, name: str) -> tuple[int, ...]:
        """The task indices of a split or of another named list, ascending.

        Raises:
            KeyError: No list has this name; the message names those that exist.
        """
        return task_list(name)

    def close(self) -> None:
        """Ends the simulators. They also end by themselves when this process does."""
        self._pool.end()
