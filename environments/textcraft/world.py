"""TextCraft: an agent gets raw materials and follows crafting commands up to a goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from configs.rules import Rules
from environments.environment import (
    Environment,
    EpisodeOverError,
    InvalidActionError,
    OracleError,
    Script,
    Step,
    World,
)
from environments.textcraft.actions import MAX_CHARACTERS, Craft, Get, parse_action
from environments.textcraft.agentgym_rules import read_agentgym_action
from environments.textcraft.goals import goals
from environments.textcraft.lists import task_lists
from environments.textcraft.nonce_names import NonceNames
from environments.textcraft.oracle import next_step
from environments.textcraft.recipes import Recipe, RecipeBook, filled_command, recipe_book
from environments.textcraft.renaming import Renaming
from environments.textcraft.scripts import craft_every_line
from environments.textcraft.tasks import AGENTGYM_VERSION, ONLY_AGENTGYMS, VERSION, depth, task
from environments.textcraft.tools import TOOLS


class TextCraftEnvironment(Environment):
    """One session. Crafting the goal ends the episode with reward 1. All other rewards are 0.

    Attributes:
        goal: The item to craft. None when no episode is in progress.
        inventory: Item -> count held, in the order in which the items were obtained.
    """

    __slots__ = ("_book", "_listed", "_renaming", "_rules", "goal", "inventory")

    def __init__(self, rules: Rules = "ours") -> None:
        self._rules = rules
        self.goal: str | None = None
        self.inventory: dict[str, int] = {}
        self._listed: tuple[Recipe, ...] = ()
        self._book: RecipeBook = recipe_book()
        self._renaming: Renaming | NonceNames | None = None

    def reset(self, index: int) -> str:
        """Start task `index` with an empty inventory. See `Environment.reset`."""
        begun = task(index, self._rules)
        self.goal = begun.goal
        self.inventory = {}
        self._listed = begun.recipes
        self._book = begun.book
        self._renaming = begun.renaming
        return begun.observation

    def step(self, action: str) -> Step:
        """Perform one action. See `Environment.step`.

        An impossible action changes nothing, and the observation states the reason.
        """
        if self.goal is None:
            raise EpisodeOverError("no TextCraft episode is in progress; reset first")
        if self._renaming is None:
            return self._step(action)
        cut = action[: MAX_CHARACTERS + 1]
        if self._rules == "ours":  # they ignore case, and item names have no capitals
            cut = cut.lower()
        answer = self._step(self._renaming.undo(cut))
        return replace(answer, observation=self._renaming.apply(answer.observation))

    def state_key(self) -> str:
        """Return the inventory as a key. See `Environment.state_key`."""
        return ", ".join(sorted(f"{count} {item}" for item, count in self.inventory.items()))

    @property
    def objective(self) -> str:
        """The goal as the agent sees it. Empty when no episode is in progress."""
        return (
            (self._renaming.apply(self.goal) if self._renaming else self.goal) if self.goal else ""
        )

    def valid_actions(self) -> list[str]:
        """Return the actions that follow from the listed commands. See `Environment.valid_actions`.

        These are all commands that can be executed now, and one `get` for each raw ingredient. If
        there is none, the only action is "inventory".
        """
        if self.goal is None:
            raise EpisodeOverError("no TextCraft episode is in progress; reset first")
        raw = self._book.raw
        gets = [
            f"get {count} {name}"
            for recipe in self._listed
            for name, count in recipe.ingredients
            if name in raw
        ]
        crafts = [
            command
            for recipe in self._listed
            if (command := filled_command(recipe, self.inventory, self._book)) is not None
        ]
        actions = list(dict.fromkeys([*gets, *crafts])) or ["inventory"]
        if self._renaming is None:
            return actions
        return [self._renaming.apply(action) for action in actions]

    def oracle_action(self) -> str:
        """Return the first action of a short plan from the current state.

        See `Environment.oracle_action`.
        """
        return self._next_step()[1]

    def oracle_thought(self) -> str:
        """Return the oracle's reasoning from the goal to `oracle_action`."""
        return self._next_step()[0]

    def close(self) -> None:
        """End the episode."""
        self.goal = None
        self.inventory = {}

    def _next_step(self) -> tuple[str, str]:
        if self.goal is None:
            raise OracleError("no TextCraft episode is in progress")
        thought, action = next_step(self.goal, tuple(self.inventory.items()), self._book)
        if self._renaming is None:
            return (thought, action)
        return (self._renaming.apply(thought), self._renaming.apply(action))

    def _step(self, action: str) -> Step:
        try:
            command = (parse_action if self._rules == "ours" else read_agentgym_action)(
                action, self._book
            )
        except InvalidActionError as refused:
            return Step(str(refused), 0.0, False, refused=True)
        if isinstance(command, Get):
            self.inventory[command.item] = self.inventory.get(command.item, 0) + command.count
            return Step(f"Got {command.count} {command.item}", 0.0, False)
        if isinstance(command, Craft):
            return self._craft(command)
        held = " ".join(f"[{item}] ({count})" for item, count in self.inventory.items())
        return Step(f"Inventory: {held or 'You are not carrying anything.'}", 0.0, False)

    def _craft(self, command: Craft) -> Step:
        inventory = self.inventory
        output = command.recipe.output
        missing = [
            f"{count - inventory.get(item, 0)} more {item} (you have {inventory.get(item, 0)} of "
            f"{count})"
            for item, count in command.given.items()
            if inventory.get(item, 0) < count
        ]
        if missing:
            return Step(
                f"Could not find enough items to craft {output}: you need {', '.join(missing)}.",
                0.0,
                False,
                refused=True,
            )
        for item, count in command.given.items():
            inventory[item] -= count
            if not inventory[item]:
                del inventory[item]
        inventory[output] = inventory.get(output, 0) + command.recipe.count
        observation = f"Crafted {command.recipe.count} minecraft:{output.replace(' ', '_')}"
        if output == self.goal:
            self.goal = None
            return Step(observation, 1.0, True)
        return Step(observation, 0.0, False)


class TextCraft(World):
    """The TextCraft environment. See `World` and `environments.textcraft.lists.task_lists`."""

    name = "textcraft"
    tools = TOOLS
    instruction = (
        "You craft an item in Minecraft. The first message lists crafting commands, some of them "
        "of no use for you, and names the goal. "
        "Answer every message with one action:\n"
        "get N item: take N of an item that none of the commands makes\n"
        "craft N item using N item, N item: follow a crafting command with items that you hold\n"
        "inventory: see what you hold\n"
        "Where a command asks for a kind of item, such as planks, use any item of that kind, such "
        "as oak planks. "
        "The task is done when the goal is crafted."
    )

    def __init__(self, rules: Rules = "ours") -> None:
        """
        Args:
            rules: Under "agentgym", recipes and action parsing are AgentGym's. See
                `agentgym_rules`.
        """
        self.rules = rules
        self.version = VERSION if rules == "ours" else AGENTGYM_VERSION

    @property
    def agentgym_tasks(self) -> tuple[int, ...]:
        """Tasks that an index of AgentGym's API can address: one for each goal. See `World`."""
        return (*range(len(goals())), *(ONLY_AGENTGYMS if self.rules == "agentgym" else ()))

    def create(self) -> TextCraftEnvironment:
        """Return a new session, before its first reset."""
        return TextCraftEnvironment(self.rules)

    @property
    def lists(self) -> Mapping[str, tuple[int, ...]]:
        """All task lists, each in ascending order."""
        return task_lists()

    @property
    def scripts(self) -> Mapping[str, Script]:
        """The script that crafts every listed command. See `World.scripts`."""
        return {"craft every line": craft_every_line}

    def tag(self, index: int) -> str:
        """Return the crafting depth of the goal of task `index`, e.g. "depth 2"."""
        return f"depth {depth(index)}"
