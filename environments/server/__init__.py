"""The server that hosts any one world: leased sessions, two wire dialects, health and metrics."""
