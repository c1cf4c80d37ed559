"""Rule sets and protocols: this project's, and those of AgentGym's own servers."""

from __future__ import annotations

from typing import Literal

Rules = Literal["ours", "agentgym"]
"""Rule set of an environment. docs/agentgym.md lists the differences for each environment."""

Dialect = Literal["ours", "agentgym"]
"""Protocol of an environment server: ours, or that of AgentGym's own servers."""
