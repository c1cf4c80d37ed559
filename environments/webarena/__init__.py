"""WebArena: an agent uses web sites in a real browser, seen through their accessibility tree."""
