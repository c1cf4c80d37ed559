"""TextCraft: craft a Minecraft item by getting raw materials and following crafting commands."""

from environments.package import WorldPackage

TASK_LISTS = {
    "train": "training goals; validation and test have other templates (plans without their names)",
    "validation": "goals to choose settings by, of templates that no other list has",
    "test": "held-out goals, of templates that no other list has",
    "renamed-train": "train under 50 other sets of names each, for demonstrations and training",
    "fresh-validation": "goals of train under names never trained on: measures reading",
    "fresh-test": "the same under yet other names, held out",
    "wood-train": "the wood family's goals (what logs alone make) in train",
    "wood-validation": "the wood family's goals in validation",
    "wood-test": "the wood family's goals in test",
    "wood-renamed-train": "wood-train under 50 other sets of names each, for demonstrations and training",
    "wood-fresh-validation": "goals of wood-train under names never trained on: measures reading",
    "wood-fresh-test": "the same under yet other names, held out",
    "short-train": "goals of train that take the oracle 2 to 5 turns",
    "short-validation": "goals of validation that take the oracle 2 to 5 turns",
    "short-test": "goals of test that take the oracle 2 to 5 turns",
    "short-renamed-train": "short-train under 50 other sets of names each, for demonstrations and training",
    "short-fresh-validation": "goals of short-train under names never trained on: measures reading",
    "short-fresh-test": "the same under yet other names, held out",
    "deep-train": "goals of train that take the oracle 6 to 12 turns",
    "deep-validation": "goals of validation that take the oracle 6 to 12 turns",
    "deep-test": "goals of test that take the oracle 6 to 12 turns",
    "deep-renamed-train": "deep-train under 50 other sets of names each, for demonstrations and training",
    "deep-fresh-validation": "goals of deep-train under names never trained on: measures reading",
    "deep-fresh-test": "the same under yet other names, held out",
    "nonce-train": "goals of 2 to 4 turns, words and counts drawn anew for each task; split by template on their own",
    "nonce-validation": "such goals under made-up words with the game's counts, of templates that no other nonce list has",
    "nonce-test": "the same of yet other templates, held out",
    "nonce-fresh-validation": "goals of nonce-train under draws never trained on",
    "nonce-fresh-test": "the same under yet other draws, held out",
    "one-command-lessons": "goals of one command among one to ten, words and counts drawn for each task: for demonstrations",
    "one-command-train": "goals of one command among ten, drawn likewise: more commands than turns",
    "one-command-validation": "the same, of templates (counts) that no lesson and no training task shows",
    "one-command-test": "the same of yet other templates, held out",
    "one-command-fresh-validation": "goals of one-command-train under draws never trained on",
    "one-command-fresh-test": "the same under yet other draws, held out",
    "chains-lessons": "goals of 3 to 12 turns, words and counts drawn, each command once, in chains of up to 4: for demonstrations",
    "chains-train": "goals drawn likewise, for reinforcement",
    "chains-validation": "the same of 6 to 12 turns, of templates that no lesson and no training task shows or contains",
    "chains-test": "the same of yet other templates, held out",
    "depth-1": "all goals that take 1 layer of crafting",
    "depth-2": "all goals that take 2 layers of crafting",
    "depth-3": "all goals that take 3 layers of crafting",
    "depth-4": "all goals that take 4 layers of crafting",
    "textcraft-ours-100": "100 tasks of test, its depths in proportion",
}
"""Task list name -> description."""


def task_of_goal(goal: str) -> int:
    """Return the task index of a goal, e.g. "dark oak sign".

    AgentGym's index of a goal differs between servers, so goals are looked up by name. See
    `environments.textcraft.tasks.task_of`.
    """
    from environments.textcraft.tasks import task_of

    return task_of(goal)


PACKAGE = WorldPackage(TASK_LISTS, task_of_goal=task_of_goal)
