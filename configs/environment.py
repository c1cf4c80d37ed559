"""The world that is played, and how: which rules, which servers, what counts as success."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from configs.conversation_start import ConversationStart
from configs.part import Part
from configs.rules import Dialect, Rules
from configs.task_selection import TaskSelection, check_world


class World(Part):
    """A world as it is served."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:+-]+$")] = "textcraft"
    """A world of environments/registry.py, or module:Class of any other; or several as one, e.g. textcraft+searchqa, whose lists are named
    together, with weights where wanted: one-command-train+2*islands-train (configs/mixture.py)."""
    rules: Rules = "ours"
    """ours, or those of AgentGym's own servers, for figures beside the paper's; docs/agentgym.md has the differences."""
    dialect: Dialect = "ours"
    """What the servers of AGENTGYM_ENVIRONMENT_URLS speak. "agentgym": they may be AgentGym's own, which name no tasks, instruction or
    success: these are then given here, or the instruction as conversation_start."""
    instruction: str | None = None
    """What the agent is told first, in place of the world's own words."""
    success_score: Annotated[float, Field(gt=0)] | None = None
    """The score from which an episode that the world ended is a success. Empty: the world's own, mostly 1."""

    @model_validator(mode="after")
    def _complete(self) -> World:
        if self.dialect == "agentgym":
            if self.success_score is None:
                raise ValueError("success_score: give a value, since servers with dialect: agentgym tell none")
            if self.rules == "ours":
                raise ValueError("rules is 'ours', which servers with dialect: agentgym do not play by; set rules: agentgym")
        return self

    def check_instruction(self, instructed: bool, conversation_start: ConversationStart) -> None:
        """Refuse an agent that would get no instruction on these servers.

        Args:
            instructed: Whether the agent is given the world's instruction.
            conversation_start: How its conversations begin; a list of messages replaces the instruction.

        Raises:
            ValueError: The servers know no instruction, and none is given.
        """
        if self.dialect == "agentgym" and self.instruction is None and instructed and isinstance(conversation_start, str):
            raise ValueError(
                "environment.instruction is empty, and servers with dialect: agentgym know none; write it there, or give the whole prompt "
                "as conversation_start"
            )

    def check_tasks(self, tasks: TaskSelection, field: str) -> None:
        """Refuses tasks that these servers cannot mean.

        Raises:
            ValueError: They are of another world, or a named list of servers that know none.
        """
        check_world(tasks, self.name, field)
        if self.dialect == "agentgym" and isinstance(tasks, str):
            raise ValueError(f"{field} is the list {tasks!r}, but servers with dialect: agentgym know no lists; give indices or a file")


class Environment(World):
    """The world and which of its tasks are trained on."""

    train_tasks: TaskSelection = "train"
    """Tasks to learn from: the name of a list, indices, or a file of indices such as AgentGym's."""
    n_train_tasks: PositiveInt | None = None
    """Use only the first so many of them; all when empty."""

    def served(self) -> World:
        """The world alone."""
        return World(**{name: getattr(self, name) for name in World.model_fields})


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


WorldByName = Annotated[World, BeforeValidator(_named)]
"""A world, or its name alone."""
