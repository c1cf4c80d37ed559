"""SearchQA: answer a question by searching a collection of passages over several turns.

By default the questions and passages are stand-ins. They are generated from the facts of installed
packages, or describe made-up islands. Set SEARCHQA_DATA to use the published questions.
"""

from environments.package import WorldPackage

RELATIONS = ("capital", "castle", "harbour", "lake", "peak")
"""The relations of islands. Each has lists that hold it out."""
TASK_LISTS = {
    "train": "questions for training",
    "validation": "questions for validation",
    "test": "held-out questions",
    "new-templates": "the questions of test whose wording occurs in no other split",
    "hops-1": "all questions whose answer takes 1 passage",
    "hops-2": "all questions whose answer takes 2 passages",
    "hops-3": "all questions whose answer takes 3 passages",
    "searchqa-ours-400": "400 questions of test, spread evenly over its kinds",
    **{
        name: text
        for side, use in {
            "lessons": "for demonstrations",
            "train": "for training",
            "validation": "for validation",
            "test": "held out",
        }.items()
        for name, text in (
            (f"islands-{side}", f"questions of one and two hops about made-up islands, {use}"),
            *(
                (
                    f"islands-no-{each}-{side}",
                    f"islands-{side} without questions for a neighbour's {each}",
                )
                for each in RELATIONS
            ),
        )
    },
    **{
        f"islands-{each}-{side}": f"questions of two hops for a neighbour's {each}, about the islands of islands-{side}"
        for each in RELATIONS
        for side in ("validation", "test")
    },
}
"""Task lists of the embedded stand-in questions, each with a description."""

PACKAGE = WorldPackage(TASK_LISTS, task_lists_replaced_by="SEARCHQA_DATA")
