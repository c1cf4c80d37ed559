"""A node of a Ray cluster that sees another folder than the others, as one does on which nothing is mounted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tasks.provision.ray_cluster import check_node, node_id


def blind_on(blind: str) -> Callable[[Path, str, str], str]:
    """`check_node`, which on one of the nodes looks into a folder that is not the shared one."""

    def seen(folder: Path, token: str, python: str) -> str:
        return check_node(folder / "not-mounted" if node_id() == blind else folder, token, python)

    return seen
