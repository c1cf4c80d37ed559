"""Let child processes find the modules that this process finds, e.g. a world of the user."""

from __future__ import annotations

import os
from pathlib import Path


def share_modules(folder: str) -> None:
    """Add the project and a folder to the module path of child processes.

    The project comes first, so that a folder of the user named configs does not hide the package.
    """
    root = str(Path(__file__).parent.parent)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [root, folder, *before])))
