"""WebArena: an agent uses web sites in a real browser, seen through their accessibility tree.

By default both sites and tasks are stand-ins of this package's own; WebArena's are used where WEBARENA_TASKS names them.
"""

TASK_LISTS = {
    "train": "63 % of the intent templates of each site and kind",
    "validation": "12 % of them",
    "test": "25 % of them, held out",
    "information": "all tasks that ask for an answer",
    "navigation": "all tasks that end on the right page",
    "change": "all tasks that change the site",
    "shopping": "all tasks of the shop alone",
    "shopping_admin": "all tasks of the shop's content management alone",
    "reddit": "all tasks of the forum alone",
    "gitlab": "all tasks of the code host alone",
    "webarena-ours-50": "50 tasks of test, its templates in turn",
    "drawn-shops-train": "4,000 errands, each in a small shop drawn for it; in no list above",
    "drawn-shops-errands-train": "1,000 of them that ask nothing: go to a product's page, put it on the wish list",
    "drawn-shops-validation": "64 in other shops",
    "drawn-shops-test": "120 in others again, held out",
}
"""The task lists of the embedded tasks, which are stand-ins for WebArena's, and what each holds."""

TASK_LISTS_REPLACED_BY = "WEBARENA_TASKS"
"""With this variable set the tasks, and with them the lists, are others."""

RENAMED_TASK_LISTS = {
    "webarena-50": "webarena-ours-50",
}
"""Names that lists once had, and those that they have now."""

IMAGE = "browser"
"""Which container image serves the world, by its target in the Dockerfile: Chromium opens the sites."""
