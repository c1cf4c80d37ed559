"""SciWorld: elementary science experiments in a simulated house, by the scienceworld package."""

TASK_LISTS = {
    "train": "the first half of the variations of all 30 kinds of task, as the package splits them",
    "validation": "the next quarter",
    "test": "the last quarter, held out",
    "agentgym-train": "the tasks of train that have an index of AgentGym's",
    "agentgym-validation": "the tasks of validation that have an index of AgentGym's",
    "agentgym-test": "the tasks of test that have an index of AgentGym's",
    "sciworld-200": "200 tasks of agentgym-test, of every kind as evenly as it allows",
}
"""The task lists, and what each holds."""
