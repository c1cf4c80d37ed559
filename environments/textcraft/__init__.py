"""TextCraft: craft a Minecraft item by getting raw materials and following crafting commands."""

from environments.package import WorldPackage

_FAMILIES = {"": "goals", "wood-": "goals of the wood family, which logs alone make,"}
TASK_LISTS = {
    **{
        f"{family}{name}": text
        for family, goals in _FAMILIES.items()
        for name, text in {
            "train": f"{goals} for training",
            "validation": f"{goals} for validation, of templates (plans without names) in no other list",
            "test": f"{goals} held out, of templates in no other list",
            "renamed-train": f"the goals of {family}train under 50 sets of other names each, for training",
        }.items()
    },
    "renamed-deep-train": "those of renamed-train that need another crafted item",
    "nonce-train": "goals of 2 to 4 turns with made-up words and random counts per task",
    "nonce-validation": "such goals with the game's counts, of templates in no other nonce list",
    "nonce-test": "such goals of further templates, held out",
    "nonce-fresh-validation": "goals of nonce-train with words and counts that training does not use",
    "nonce-fresh-test": "goals of nonce-train with further unused words and counts, held out",
    "one-command-lessons": "goals of one command among one to ten, with random words and counts, for demonstrations",
    "one-command-train": "such goals with one command among ten, which is more than the turns allow to try",
    "one-command-validation": "such goals of templates (counts) that neither lessons nor training use",
    "one-command-test": "such goals of further templates, held out",
    "one-command-fresh-validation": "goals of one-command-train with words and counts that training does not use",
    "one-command-fresh-test": "goals of one-command-train with further unused words and counts, held out",
    "chains-lessons": "goals of 3 to 12 turns in chains of up to 4 commands, with random words and counts, for demonstrations",
    "chains-train": "such goals for RL",
    "chains-validation": "such goals of 6 to 12 turns, of templates that no lesson and no training task contains",
    "chains-test": "such goals of further templates, held out",
    "textcraft-ours-100": "100 tasks of test, in proportion to its crafting depths",
}
"""Task list name -> description."""


def task_of_goal(goal: str) -> int:
    """Return the task index of a goal, e.g. "dark oak sign".

    AgentGym's servers number goals differently, so goals are looked up by name. See
    `environments.textcraft.tasks.task_of`.
    """
    from environments.textcraft.tasks import task_of

    return task_of(goal)


PACKAGE = WorldPackage(TASK_LISTS, task_of_goal=task_of_goal)
