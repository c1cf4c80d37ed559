"""The server that hosts one world: leased sessions, three wire dialects, health and metrics."""
