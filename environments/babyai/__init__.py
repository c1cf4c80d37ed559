"""BabyAI: an agent in a grid world of rooms, doors, keys, balls and boxes performs a mission."""

from environments.package import WorldPackage

TASK_LISTS = {
    "train": "100 seeds of each of the 40 levels",
    "validation": "5 seeds of each level",
    "test": "25 seeds of each level, held out",
    "doors-train": "500 other seeds of each of six levels in which doors must be found, opened, unlocked or passed",
    "doors-validation": "16 other seeds of each of these levels",
    "doors-test": "20 other seeds of each of these levels, held out",
    "babyai-ours-90": "the first two or three tasks of each level in test",
    "babyai-ours-160": "the next four tasks of each level in test",
    "babyai-ours-156": "up to four more of each level in test",
    "babyai-ours-195": "up to five more of each level in test",
}
"""Task list name -> description."""

PACKAGE = WorldPackage(TASK_LISTS)
