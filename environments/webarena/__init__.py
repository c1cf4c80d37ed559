"""WebArena: an agent uses web sites in a real browser and observes their accessibility tree.

By default sites and tasks are stand-ins that this package provides. Set WEBARENA_TASKS to use
WebArena's own.
"""

from environments.package import WorldPackage

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
"""Task lists of the embedded stand-in tasks, each with a description."""

PACKAGE = WorldPackage(TASK_LISTS, task_lists_replaced_by="WEBARENA_TASKS", image="browser")  # the image has Chromium
