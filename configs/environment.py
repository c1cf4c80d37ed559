"""The environment of an experiment: rules, server protocol and success criterion."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from configs.config_model import ConfigModel
from configs.conversation_start import ConversationStart
from configs.rules import Dialect, Rules
from configs.task_selection import TaskSelection, check_world


class World(ConfigModel):
    """An environment as its servers host it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:+-]+$")] = "textcraft"
    """Name of the environment.

    It is a name of environments/registry.py, module:Class of any other, or a mixture, e.g.
    textcraft+searchqa. The task lists of a mixture are named together, optionally with weights:
    one-command-train+2*islands-train (configs/mixture.py).
    """
    rules: Rules = "ours"
    """Rule set: "ours", or "agentgym" (those of AgentGym's own servers).

    Use "agentgym" for figures comparable with the paper's. docs/agentgym.md lists the differences.
    """
    dialect: Dialect = "ours"
    """Protocol of the servers in AGENTGYM_ENVIRONMENT_URLS.

    "agentgym": the servers may be AgentGym's own. These report no task lists, instruction or
    success score, so give them here. The instruction can also be given as conversation_start.
    """
    instruction: str | None = None
    """The instruction at the start of the prompt. Empty: the environment's own."""
    success_score: Annotated[float, Field(gt=0)] | None = None
    """Smallest score at which an episode that the environment ended counts as a success.

    Empty: the environment's own, mostly 1.
    """

    @model_validator(mode="after")
    def _check_dialect(self) -> World:
        if self.dialect == "agentgym":
            if self.success_score is None:
                raise ValueError(
                    "success_score is empty, but servers with dialect: agentgym do not report one; "
                    "give a value"
                )
            if self.rules == "ours":
                raise ValueError(
                    "rules: ours is not supported by servers with dialect: agentgym; set rules: "
                    "agentgym"
                )
        return self

    def check_instruction(self, instructed: bool, conversation_start: ConversationStart) -> None:
        """Check that the agent gets an instruction on these servers.

        Args:
            instructed: Whether the prompt includes the environment's instruction.
            conversation_start: How conversations begin. A list of messages replaces the
                instruction.

        Raises:
            ValueError: The servers report no instruction, and none is given.
        """
        if (
            self.dialect == "agentgym"
            and self.instruction is None
            and instructed
            and isinstance(conversation_start, str)
        ):
            raise ValueError(
                "environment.instruction is empty, but servers with dialect: agentgym do not "
                "report one; give it, or the whole prompt as conversation_start"
            )

    def check_tasks(self, tasks: TaskSelection, field: str) -> None:
        """Check that these servers can interpret the tasks.

        Raises:
            ValueError: The tasks belong to another environment, or are a named list on servers
                without lists.
        """
        check_world(tasks, self.name, field)
        if self.dialect == "agentgym" and isinstance(tasks, str):
            raise ValueError(
                f"{field} is the list {tasks!r}, but servers with dialect: agentgym have no lists; "
                "give indices or a file"
            )


class Environment(World):
    """The environment and its training tasks."""

    train_tasks: TaskSelection = "train"
    """Training tasks: the name of a list, indices, or a file of indices such as AgentGym's."""
    n_train_tasks: PositiveInt | None = None
    """Use only the first n of these tasks. Empty: all of them."""

    def served(self) -> World:
        """Return the environment without its training tasks."""
        return World(**{name: getattr(self, name) for name in World.model_fields})


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


WorldByName = Annotated[World, BeforeValidator(_named)]
"""An environment, or its name alone."""
