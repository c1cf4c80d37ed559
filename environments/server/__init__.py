"""The server that hosts one world: leased sessions, two wire dialects, health and metrics."""
