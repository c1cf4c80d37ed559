"""TextCraft: craft a Minecraft item by getting raw materials and following crafting commands."""

TASK_LISTS = {
    "train": "70 % of the goals of each crafting depth",
    "validation": "10 % of them",
    "test": "20 % of them, held out",
    "depth-1": "all goals that take 1 layer of crafting",
    "depth-2": "all goals that take 2 layers of crafting",
    "depth-3": "all goals that take 3 layers of crafting",
    "depth-4": "all goals that take 4 layers of crafting",
    "wood-train": "the wood family's goals (what logs alone make) in train",
    "wood-validation": "the wood family's goals in validation",
    "wood-test": "the wood family's goals in test",
    "wood-renamed": "48 variants of each task of wood-train with the words of its names exchanged, for demonstrations",
    "textcraft-ours-100": "100 tasks of test, its depths in proportion",
}
"""The task lists, and what each holds."""

RENAMED_TASK_LISTS = {
    "textcraft-100": "textcraft-ours-100",
}
"""Names that lists once had, and those that they have now."""
