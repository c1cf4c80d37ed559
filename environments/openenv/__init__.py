"""Any environment that an OpenEnv server hosts, as a world.

Set OPENENV_URL to the server's address. docs/openenv.md describes the other settings.
"""

from environments.package import WorldPackage

PACKAGE = WorldPackage()  # only the server knows its tasks
