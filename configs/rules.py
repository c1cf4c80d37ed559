"""Under which rules a world is played: this project's, or those of AgentGym's own servers, for figures beside the paper's."""

from __future__ import annotations

from typing import Literal

Rules = Literal["ours", "agentgym"]
"""docs/agentgym.md says world by world what the two differ in."""

Dialect = Literal["ours", "agentgym"]
"""What is spoken with an environment server: our protocol, or that of AgentGym's own servers."""
