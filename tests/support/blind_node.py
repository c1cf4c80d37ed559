"""A Ray node on which the shared folder is not mounted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tasks.provision.ray_cluster import check_node, node_id


def check_node_unmounted_on(unmounted: str) -> Callable[[Path, str, str], str]:
    """Return a `check_node` that looks into a different folder on the node `unmounted`."""

    def check(folder: Path, token: str, python: str) -> str:
        path = folder / "not-mounted" if node_id() == unmounted else folder
        return check_node(path, token, python)

    return check
