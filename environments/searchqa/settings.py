"""Settings of a SearchQA server, read from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from environments.environment import SettingsError
from environments.searchqa.corpus import BUILD_HELP


@dataclass(frozen=True)
class Settings:
    """Source of the questions, and rules for judging answers.

    Attributes:
        data: SEARCHQA_DATA, a folder that `python -m environments.searchqa.build published`
            created. None means the embedded questions.
        cache: SEARCHQA_CACHE, the folder where the embedded corpus is stored once it is built.
        wrong_ends: SEARCHQA_WRONG_ANSWER, "end" or "continue": whether a wrong answer ends the
            episode. "continue" lets an agent guess repeatedly, as AgentGym's servers do.
        format_reward: SEARCHQA_FORMAT_REWARD, 0 to 1: the share of the reward given for well-formed
            messages. A wrong answer earns it if every message ended with its one action. A right
            answer loses it if any message did not.
        last_answer: Whether the last of several answers in a message counts, as in AgentGym's
            rules.
    """

    data: Path | None = None
    cache: Path = Path("~/.cache/agentgym-pipeline/searchqa")
    wrong_ends: bool = True
    format_reward: float = 0.0
    last_answer: bool = False

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from environment variables.

        Raises:
            SettingsError: A value is invalid.
        """
        data = variables.get("SEARCHQA_DATA")
        cache = variables.get("SEARCHQA_CACHE")
        home = variables.get("XDG_CACHE_HOME")
        wrong = variables.get("SEARCHQA_WRONG_ANSWER", "end")
        if wrong not in ("end", "continue"):
            raise SettingsError(
                "SEARCHQA_WRONG_ANSWER", f'is {wrong!r}; set it to "end" or "continue"'
            )
        form = variables.get("SEARCHQA_FORMAT_REWARD", "0")
        try:
            share = float(form)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise SettingsError(
                "SEARCHQA_FORMAT_REWARD", f"is {form!r}; set it to a number from 0 to 1"
            )
        if cache:
            folder = Path(cache)
        elif home:
            folder = Path(home) / "agentgym-pipeline" / "searchqa"
        else:
            folder = cls.cache
        if data and not os.path.isdir(os.path.expanduser(data)):
            raise SettingsError(
                "SEARCHQA_DATA", f"is {data!r}, which is not a folder; to build one: {BUILD_HELP}"
            )
        return cls(_path(data) if data else None, _path(folder), wrong == "end", share)


def _path(text: str | Path) -> Path:
    """Expand "~". A path with an unknown user's home folder stays unchanged."""
    return Path(os.path.expanduser(text))
