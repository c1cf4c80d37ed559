"""BabyAI: an agent in a grid world of rooms, doors, keys, balls and boxes carries out a mission given in words."""

TASK_LISTS = {
    "train": "100 seeds of each of the 40 levels",
    "validation": "5 seeds of each level",
    "test": "25 seeds of each level, held out",
    "doors-train": "500 seeds, none of them above, of each of six levels of doors to find, open, unlock or go through",
    "doors-validation": "16 seeds of each of these levels",
    "doors-test": "20 seeds of each of these levels, held out",
    "babyai-ours-90": "the first two or three tasks of each level in test",
}
"""The task lists, and what each holds."""

RENAMED_TASK_LISTS = {
    "babyai-90": "babyai-ours-90",
}
"""Names that lists once had, and those that they have now."""
