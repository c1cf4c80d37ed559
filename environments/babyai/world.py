"""BabyAI: an agent in a grid world of rooms carries out a mission given in words."""

from __future__ import annotations

from base64 import b64encode

from environments.babyai.actions import CHECK, UNKNOWN, Action, available_actions, explain_refusal
from environments.babyai.levels import QuickLevel, discard_level, make_level, state_of
from environments.babyai.oracle import Oracle
from environments.babyai.steps import low_level, perform
from environments.babyai.tasks import VERSION, level_and_seed, task_list
from environments.babyai.view import View, look
from environments.environment import EpisodeOverError, OracleError, Step

MAX_CHARACTERS = 500


class BabyAIEnvironment:
    """One session. An episode ends with reward 1 when its mission is done and with 0 when it has failed; nothing else earns anything.

    There is no limit of steps: whoever plays sets the horizon.

    Attributes:
        played: The level as it stands; None before the first reset and after close.
        done: Whether the episode has ended.
        discounted_reward: minigrid's own reward, which falls with every step of its: 1 - 0.9 steps / limit of the level, at least 0;
            0 until the mission is done.
    """

    __slots__ = ("_actions", "_listed", "_oracle", "_view", "discounted_reward", "done", "played")

    def __init__(self) -> None:
        self.played: QuickLevel | None = None
        self.done = False
        self.discounted_reward = 0.0

    def reset(self, index: int) -> str:
        """Begins task `index`; see `Environment.reset`."""
        level, seed = level_and_seed(index)
        self.close()
        self.played = make_level(level, seed)
        self.done = False
        self.discounted_reward = 0.0
        self._oracle = Oracle(level)
        self._see(look(self.played))
        return f"Your goal: {self.played.mission}\n{self._view.describe()}{self._listed}"

    def step(self, action: str) -> Step:
        """Performs one action; see `Environment.step`. An action that cannot be done is answered with why and changes nothing."""
        if self.played is None or self.done:
            raise EpisodeOverError("no BabyAI episode is in progress; reset first")
        if len(action) > MAX_CHARACTERS:
            return Step(UNKNOWN + self._listed, 0.0, False)
        words = " ".join(action.lower().split())
        if words.startswith("pick up "):
            words = "pickup " + words.removeprefix("pick up ")
        if "check" in words:
            return Step(f"You can take the following actions: {', '.join(self._actions)}{self._listed}", 0.0, False)
        if words not in self._actions:
            return Step(explain_refusal(words, self._view) + self._listed, 0.0, False)
        return self._perform(self.played, self._actions[words])

    def state_key(self) -> str:
        """Where the agent is, what it carries, where everything is, and which parts of the mission are done; see `Environment`."""
        return "" if self.played is None else state_of(self.played)

    def oracle_action(self) -> str:
        """The action that gets furthest along the way of minigrid's bot; see `Environment.oracle_action`."""
        if self.played is None or self.done:
            raise OracleError("no BabyAI episode is in progress")
        return self._oracle.action(self.played, self._view, self._actions)

    def picture(self) -> bytes:
        """The whole grid as a PNG, what the agent sees of it lightened.

        Raises:
            EpisodeOverError: There is no level to draw.
        """
        if self.played is None:
            raise EpisodeOverError("no BabyAI episode has begun; reset first")
        from environments.babyai.drawing import draw_level

        return draw_level(self.played)

    def picture_url(self) -> str:
        """The same as a data URL, for pages."""
        return "data:image/png;base64," + b64encode(self.picture()).decode()

    def close(self) -> None:
        """Ends the episode and frees its level."""
        if self.played is not None:
            discard_level(self.played)
        self.played = None

    def _perform(self, played: QuickLevel, action: Action) -> Step:
        steps = low_level(action, self._view, int(played.agent_dir))
        if not steps:
            return Step("No change in state." + self._listed, 0.0, False)
        view, won = perform(played, self._view, steps)
        self._see(view)
        self.done = won is not None
        ending = {None: "", True: "\n The task is completed.", False: "\n The task has failed."}[won]
        if won:
            self.discounted_reward = max(0.0, 1 - 0.9 * played.step_count / played.max_steps)
        return Step(view.describe() + ending + self._listed, 1.0 if won else 0.0, self.done)

    def _see(self, view: View) -> None:
        assert self.played is not None
        self._view = view
        self._actions = available_actions(view, int(self.played.agent_dir))
        self._listed = '\nAvailable actions: ["' + '", "'.join(self._actions) + '"]'


class BabyAI:
    """The world; see `World`. `tasks` also knows the list "babyai-90"."""

    name = "babyai"
    version = VERSION
    instruction = (
        "You are an agent in a grid world of rooms and carry out a mission there. The first message names your goal; every message says "
        "what you see in front of you, how far ahead and to the side it is, what you carry, and which actions you have. "
        "Things of the same name are told apart by a number. Answer every message with one action:\n"
        "turn left\n"
        "turn right\n"
        "move forward: take one step ahead\n"
        "go to <thing> <number>: walk up to a thing in view and face it\n"
        "pickup <thing> <number>: walk up to a key, ball or box in view and pick it up; you can carry one thing\n"
        "drop: put down what you carry right in front of you\n"
        "toggle: open or close the door, or open the box, right in front of you; opening a box leaves only what is in it\n"
        "go through <door> <number>: walk through an open door\n"
        "toggle and go through <door> <number>: walk up to a closed door, open it and go through; a locked door needs the key of its "
        "colour in your hand\n"
        f"{CHECK}: list the actions that you have now\n"
        "A thing that you look for may be behind you or in another room. The parts of a mission are done in the order that it names."
    )

    def create(self) -> BabyAIEnvironment:
        """A new session, before its first reset."""
        return BabyAIEnvironment()

    def tasks(self, name: str) -> tuple[int, ...]:
        """The task indices of a split or of another named list, ascending.

        Raises:
            KeyError: No list has this name; the message names those that exist.
        """
        return task_list(name)
