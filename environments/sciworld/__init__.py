"""SciWorld: elementary science experiments in a simulated house, by the scienceworld package."""
