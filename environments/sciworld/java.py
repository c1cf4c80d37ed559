"""The simulator's Java command: flags, Simulator.java, and the scienceworld package."""

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
"""Heap for the sessions of one process, in MB. A session takes about 0.3 MB, so 64 sessions need
only a small part.
"""
YOUNG_MB = 256
"""Heap for new objects, in MB.

A reset allocates 4 MB, and each collection copies the houses in use. With 40 MB this took a third
of a reset's time.
"""
FLAGS = (
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # makes the order of the simulator's sets deterministic: insertion order
    # Simulator.java reads the state of the random generator.
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    # The simulator's case conversion and number format depend on the locale.
    "-Duser.language=en",
    "-Duser.country=US",
    "-Dfile.encoding=UTF-8",
    "-XX:+UseSerialGC",
    f"-Xms{YOUNG_MB + 128}m",
    f"-Xmn{YOUNG_MB}m",
    f"-Xmx{YOUNG_MB + HEAP_MB}m",
    "-XX:ReservedCodeCacheSize=64m",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    # Otherwise a process's memory appears to grow until its whole heap was used once.
    "-XX:+AlwaysPreTouch",
)


def command() -> list[str]:
    """Return the command that starts a simulator process.

    Raises:
        JavaMissingError: Java is not installed. The message gives the install command.
        SimulatorError: The scienceworld package is missing, or its version does not match the task
            indices.
    """
    java = shutil.which("java")
    if java is None:
        raise JavaMissingError(f"SciWorld needs Java, which is not installed; run: {INSTALL}")
    return [java, *FLAGS, "-cp", str(package_folder() / "scienceworld.jar"), str(SOURCE)]


def package_folder() -> Path:
    """Return the folder of the scienceworld package. The simulator reads a table there.

    Raises:
        SimulatorError: The package is not installed, or has another version.
    """
    install = f"run: pip install scienceworld=={PACKAGE_VERSION}"
    found = importlib.util.find_spec("scienceworld")
    if found is None or found.origin is None:
        raise SimulatorError(
            f"SciWorld needs the package scienceworld, which is not installed; {install}"
        )
    version = importlib.metadata.version("scienceworld")
    if version != PACKAGE_VERSION:
        raise SimulatorError(
            f"SciWorld needs scienceworld {PACKAGE_VERSION}, not {version}; {install}"
        )
    return Path(found.origin).parent
