"""BabyAI: an agent in a grid world of rooms performs a mission given in words."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO

from configs.rules import Rules
from environments.action_text import plain_words, without_punctuation
from environments.babyai.actions import CHECK, UNKNOWN, available_actions, explain_refusal
from environments.babyai.levels import PlayedLevel, discard_level, make_level
from environments.babyai.oracle import Oracle, state_of
from environments.babyai.steps import low_level, perform, perform_to_the_end
from environments.babyai.tasks import VERSION, level_and_seed, task_lists
from environments.babyai.tools import TOOLS
from environments.babyai.view import View, look
from environments.environment import (
    Environment,
    EpisodeOverError,
    OracleError,
    Step,
    World,
    version_under,
)

MAX_CHARACTERS = 500
COMPLETED = "\n The task is completed."
REJECTED = 0.5
"""Threshold of AgentGym's rules: a completed mission ends the episode only with a higher reward."""
AGENTGYM_REWARDS = (-1000.0, 1.0)
"""Reward range under AgentGym's rules. An episode may outlast minigrid's step limit. 1 - 0.9 steps
/ limit is then negative.
"""

TILE_PIXELS = 32


class BabyAIEnvironment(Environment):
    """One session. An episode ends with reward 1 if the mission is done and 0 if it failed.

    All other rewards are 0. There is no step limit, so the rollout must set the horizon.

    AgentGym's rules differ as follows:
    - The episode ends only if the last step of an action completes the mission and minigrid's
      reward is above 0.5. That reward is 1 - 0.9 steps / limit of the level.
    - A lower reward is repeated every turn until the next action that is executed. A score can
      therefore exceed 1.
    - A failed mission continues.
    - The goal does not state the order of its parts.

    Attributes:
        played: The level in play. None before the first reset and after close.
        done: Whether the episode has ended.
        score: Sum of the episode's rewards so far.
        discounted_reward: minigrid's own reward, max(0, 1 - 0.9 steps / limit of the level). 0
            until the mission is done.
    """

    __slots__ = (
        "_actions",
        "_listed",
        "_oracle",
        "_reward",
        "_rules",
        "_view",
        "discounted_reward",
        "done",
        "played",
        "score",
    )

    def __init__(self, rules: Rules = "ours") -> None:
        self._rules = rules
        self._reward = 0.0
        self.score = 0.0
        self.played: PlayedLevel | None = None
        self.done = False
        self.discounted_reward = 0.0

    def reset(self, index: int) -> str:
        """Start task `index`. See `Environment.reset`."""
        level, seed = level_and_seed(index)
        self.close()
        self.played = make_level(level, seed)
        self.done = False
        self._reward = self.score = self.discounted_reward = 0.0
        self._oracle = Oracle(level)
        self._see(look(self.played))
        mission = (
            self.played.mission if self._rules == "ours" else without_order(self.played.mission)
        )
        return f"Your goal: {mission}\n{self._view.describe()}{self._listed}"

    def step(self, action: str) -> Step:
        """Perform one action. See `Environment.step`.

        An impossible action changes nothing, and the observation states the reason.
        """
        if self.played is None or self.done:
            raise EpisodeOverError("no BabyAI episode is in progress; reset first")
        text, ending, refused = self._answer(self.played, action)
        self.score += self._reward
        return Step(text + ending + self._listed, self._reward, self.done, refused)

    def state_key(self) -> str:
        """Return a key of the state: agent, objects and mission progress."""
        return "" if self.played is None else repr(state_of(self.played))

    @property
    def objective(self) -> str:
        """The mission. Empty when no episode is in progress."""
        return "" if self.played is None else self.played.mission

    def valid_actions(self) -> list[str]:
        """Return the listed actions, except the listing itself. See `Environment.valid_actions`."""
        if self.played is None or self.done:
            raise EpisodeOverError("no BabyAI episode is in progress; reset first")
        return [action for action in self._actions if action != CHECK]

    def oracle_action(self) -> str:
        """Return the action that gets furthest along the path of minigrid's bot.

        See `Environment.oracle_action`.
        """
        if self.played is None or self.done:
            raise OracleError("no BabyAI episode is in progress")
        return self._oracle.action(self.played, self._view, self._actions)

    def picture(self) -> bytes:
        """Render the full grid as a PNG, with the agent's field of view highlighted.

        Raises:
            EpisodeOverError: There is no level to draw.
        """
        if self.played is None:
            raise EpisodeOverError("no BabyAI episode has begun; reset first")
        from PIL import Image  # imported here, since only viewers draw

        picture = BytesIO()
        pixels = self.played.get_full_render(highlight=True, tile_size=TILE_PIXELS)
        Image.fromarray(pixels).save(picture, "PNG")
        return picture.getvalue()

    def picture_url(self) -> str:
        """Return the picture as a data URL for web pages."""
        return "data:image/png;base64," + b64encode(self.picture()).decode()

    def close(self) -> None:
        """End the episode and free its level."""
        if self.played is not None:
            discard_level(self.played)
        self.played = None

    def _answer(self, played: PlayedLevel, action: str) -> tuple[str, str, bool]:
        """Perform an action.

        Returns:
            - The description of the view, or why the action was refused.
            - The message about the mission's end, or an empty string.
            - Whether the action was refused.
        """
        if len(action) > MAX_CHARACTERS:
            return UNKNOWN, "", True
        words = " ".join(
            (without_punctuation if self._rules == "ours" else plain_words)(action).lower().split()
        )
        if words.startswith("pick up ") and self._rules == "ours":
            words = "pickup " + words.removeprefix("pick up ")
        if "check" in words:
            return f"You can take the following actions: {', '.join(self._actions)}", "", False
        if words not in self._actions:
            return explain_refusal(words, self._view), "", True
        steps = low_level(self._actions[words], self._view, int(played.agent_dir))
        if not steps:
            return "No change in state.", "", False
        if self._rules == "ours":
            ending = self._perform(played, steps)
        else:
            ending = self._perform_as_agentgym(played, steps)
        return self._view.describe(), ending, False

    def _perform(self, played: PlayedLevel, steps: list[int]) -> str:
        view, won = perform(played, self._view, steps)
        self._see(view)
        if won is None:
            return ""
        self.done = True
        if won:
            self._reward = 1.0
            self.discounted_reward = max(0.0, 1 - 0.9 * played.step_count / played.max_steps)
        return COMPLETED if won else "\n The task has failed."

    def _perform_as_agentgym(self, played: PlayedLevel, steps: list[int]) -> str:
        view, ended, self._reward = perform_to_the_end(played, self._view, steps)
        self._see(view)
        self.done = ended and self._reward > REJECTED
        if self._reward:
            self.discounted_reward = max(0.0, self._reward)
        return COMPLETED if ended else ""  # AgentGym sends this message for a failed mission too

    def _see(self, view: View) -> None:
        assert self.played is not None
        self._view = view
        self._actions = available_actions(view, int(self.played.agent_dir), self._rules)
        self._listed = '\nAvailable actions: ["' + '", "'.join(self._actions) + '"]'


def without_order(mission: str) -> str:
    """Return a mission as AgentGym states it, without the order of its parts."""
    return mission.replace("then", "and").replace("after you", "and")


class BabyAI(World):
    """The BabyAI environment. See `World` and `environments.babyai.tasks.task_lists`."""

    name = "babyai"
    tools = TOOLS
    instruction = (
        "You are an agent in a grid world of rooms and carry out a mission there. The first "
        "message names your goal; every message says "
        "what you see in front of you, how far ahead and to the side it is, what you carry, and "
        "which actions you have. "
        "Things of the same name are told apart by a number. Answer every message with one "
        "action:\n"
        "turn left\n"
        "turn right\n"
        "move forward: take one step ahead\n"
        "go to <thing> <number>: walk up to a thing in view and face it\n"
        "pickup <thing> <number>: walk up to a key, ball or box in view and pick it up; you can "
        "carry one thing\n"
        "drop: put down what you carry right in front of you\n"
        "toggle: open or close the door, or open the box, right in front of you; opening a box "
        "leaves only what is in it\n"
        "go through <door> <number>: walk through an open door\n"
        "toggle and go through <door> <number>: walk up to a closed door, open it and go through; "
        "a locked door needs the key of its "
        "colour in your hand\n"
        f"{CHECK}: list the actions that you have now\n"
        "A thing that you look for may be behind you or in another room."
    )

    def __init__(self, rules: Rules = "ours") -> None:
        """
        Args:
            rules: See `BabyAIEnvironment`.
        """
        self.rules = rules
        self.version = version_under(rules, VERSION)
        if rules == "ours":
            self.instruction += " The parts of a mission are done in the order that it names."
        else:
            self.success_score = REJECTED
            self.reward_range = AGENTGYM_REWARDS

    def create(self) -> BabyAIEnvironment:
        """Return a new session, before its first reset."""
        return BabyAIEnvironment(self.rules)

    @property
    def lists(self) -> Mapping[str, tuple[int, ...]]:
        """All task lists, each in ascending order."""
        return task_lists()
