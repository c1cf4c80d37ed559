"""WebArena: an agent uses web sites in a real browser and observes their accessibility tree.

By default sites and tasks are stand-ins that this package provides. Set WEBARENA_TASKS to use
WebArena's own.
"""

from environments.package import WorldPackage

TASK_LISTS = {
    "train": "tasks of 63 % of the intent templates of each site and kind",
    "validation": "tasks of 12 % of the templates",
    "test": "tasks of 25 % of the templates, held out",
    "read-only-train": "the tasks of train that change nothing on the sites",
    "read-only-validation": "the tasks of validation that change nothing on the sites",
    "read-only-test": "the tasks of test that change nothing on the sites",
    "information": "all tasks that require an answer",
    "navigation": "all tasks that must end on a page",
    "change": "all tasks that must change the site",
    "shopping": "all tasks of the shop alone",
    "shopping_admin": "all tasks of the shop's content management alone",
    "reddit": "all tasks of the forum alone",
    "gitlab": "all tasks of the code host alone",
    "webarena-ours-50": "50 tasks of test, spread evenly over its templates",
    "drawn-shops-train": "4,000 tasks, each in its own randomly generated small shop",
    "drawn-shops-no-answer-train": "the 1,000 of them that require no answer: open a product's page, or add it to the wish list",
    "drawn-shops-validation": "64 tasks in other shops",
    "drawn-shops-test": "120 tasks in further shops, held out",
}
"""Task lists of the embedded stand-in tasks, each with a description."""

PACKAGE = WorldPackage(
    TASK_LISTS,
    task_lists_replaced_by="WEBARENA_TASKS",
    image="browser",  # with Chromium
    variables=("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA", "HOMEPAGE"),
)
