"""How Java runs the simulator: its flags, our program, and the scienceworld package that it simulates with."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from pathlib import Path

from environments.sciworld.frames import JavaMissingError, SimulatorError
from environments.sciworld.tasks import PACKAGE_VERSION

INSTALL = "sudo apt-get install default-jre-headless"
SOURCE = Path(__file__).with_name("Simulator.java")
HEAP_MB = 768
"""The most that the sessions of one process may take: about 0.3 MB each. What 64 of them need is a small part of it."""
YOUNG_MB = 256
"""For what is new: a reset makes 4 MB, and each collection copies the houses that are in use. With 40 MB that cost a third of a reset."""
FLAGS = (
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # the simulator's sets of objects are then in the order in which the objects came, not in a random one
    "--add-opens=java.base/java.util=ALL-UNNAMED",  # lets Simulator.java take out the state of the random generator
    "-Duser.language=en",  # the simulator changes case and writes numbers by the locale
    "-Duser.country=US",
    "-Dfile.encoding=UTF-8",
    "-XX:+UseSerialGC",
    f"-Xms{YOUNG_MB + 128}m",
    f"-Xmn{YOUNG_MB}m",
    f"-Xmx{YOUNG_MB + HEAP_MB}m",
    "-XX:ReservedCodeCacheSize=64m",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-XX:+AlwaysPreTouch",  # or the memory of a process seems to grow until all of its heap was used once
)


def command() -> list[str]:
    """The command of a simulator process.

    Raises:
        JavaMissingError: There is no Java; the message says how to install it.
        SimulatorError: There is no scienceworld package, or not the version that the task indices are written for.
    """
    java = shutil.which("java")
    if java is None:
        raise JavaMissingError(f"SciWorld's simulator needs Java, and there is none; run: {INSTALL}")
    return [java, *FLAGS, "-cp", str(package_folder() / "scienceworld.jar"), str(SOURCE)]


def package_folder() -> Path:
    """The folder of the scienceworld package; the simulator reads a table there.

    Raises:
        SimulatorError: It is not installed, or another version is.
    """
    found = importlib.util.find_spec("scienceworld")
    if found is None or found.origin is None:
        raise SimulatorError(f"SciWorld needs the scienceworld package; run: pip install scienceworld=={PACKAGE_VERSION}")
    version = importlib.metadata.version("scienceworld")
    if version != PACKAGE_VERSION:
        raise SimulatorError(f"the scienceworld package is {version}; run: pip install scienceworld=={PACKAGE_VERSION}")
    return Path(found.origin).parent
