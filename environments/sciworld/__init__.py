"""SciWorld: elementary science experiments in a simulated house, from the scienceworld package."""

from environments.package import WorldPackage

TASK_LISTS = {
    "train": "the first half of the variations of all 30 kinds of task, as the package splits them",
    "validation": "the next quarter",
    "test": "the last quarter, held out",
    "agentgym-kinds-train": "tasks of train whose kind AgentGym includes",
    "agentgym-kinds-validation": "tasks of validation whose kind AgentGym includes",
    "agentgym-kinds-test": "tasks of test whose kind AgentGym includes",
    "find-train": "tasks of train in which an object must be found and carried to a box: 150 variations of four kinds",
    "find-validation": "96 tasks of validation, 24 of each of these kinds",
    "find-test": "120 tasks of test, 30 of each of these kinds",
    "still-train": "tasks of find-train in which the object is a non-living thing or a plant",
    "still-validation": "96 tasks of validation, 48 of each of these two kinds",
    "still-test": "120 tasks of test, 60 of each of these two kinds",
    "sciworld-ours-200": "200 tasks of agentgym-kinds-test, spread evenly over the kinds",
}
"""Task list name -> description."""

PACKAGE = WorldPackage(TASK_LISTS, image="java")  # the simulator needs Java
