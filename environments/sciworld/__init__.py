"""SciWorld: elementary science experiments in a simulated house, from the scienceworld package."""

from environments.package import WorldPackage

TASK_LISTS = {
    "train": "the first half of the variations of all 30 kinds of task, as the package splits them",
    "validation": "the next quarter",
    "test": "the last quarter, held out",
    "agentgym-kinds-train": "the tasks of train that are of the kinds that AgentGym plays",
    "agentgym-kinds-validation": "the tasks of validation that are of the kinds that AgentGym plays",
    "agentgym-kinds-test": "the tasks of test that are of the kinds that AgentGym plays",
    "find-train": "the tasks of train in which a thing is to be found and carried to a box: four kinds, 150 variations each",
    "find-validation": "96 tasks of validation of these kinds, as many of each",
    "find-test": "120 tasks of test of these kinds, as many of each",
    "still-train": "the tasks of find-train in which it is a non-living thing or a plant",
    "still-validation": "96 tasks of validation of these two kinds, as many of each",
    "still-test": "120 tasks of test of these two kinds, as many of each",
    "sciworld-ours-200": "200 tasks of agentgym-kinds-test, of every kind as evenly as it allows",
}
"""Task list name -> description."""

PACKAGE = WorldPackage(TASK_LISTS, image="java")  # the simulator needs Java
