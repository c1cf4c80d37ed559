"""SearchQA: answer a question by searching a collection of passages over several turns.

By default the questions and passages are stand-ins. They are generated from the facts of installed
packages, or describe made-up islands. Set SEARCHQA_DATA to use the published questions.
"""

from environments.package import WorldPackage

TASK_LISTS = {
    "train": "questions to learn from",
    "validation": "questions to tune on",
    "test": "held-out questions",
    "new-templates": "the questions of test whose wording occurs in no other split",
    "hops-1": "all questions whose answer takes 1 passage",
    "hops-2": "all questions whose answer takes 2 passages",
    "hops-3": "all questions whose answer takes 3 passages",
    "searchqa-ours-400": "400 questions of test, its kinds in turn",
    "islands-lessons": "questions of one and two hops about made-up islands, for demonstrations",
    "islands-train": "such questions about other islands, to learn from",
    "islands-validation": "such questions about islands of their own, to tune on",
    "islands-test": "such held-out questions",
    "islands-new-templates-validation": "questions of two hops to what nothing else asks of neighbours, to tune on",
    "islands-new-templates-test": "such held-out questions, about other islands",
    "islands-new-wording-test": "such held-out questions, they and their passages worded like no other",
    **{
        name: text
        for side in ("lessons", "train", "validation", "test", "new-wording-test")
        for name, text in (
            (f"islands-three-hops-{side}", f"such questions of three hops, about the islands of islands-{side}"),
            (f"islands-deep-{side}", f"questions of one to three hops about the islands of islands-{side}"),
        )
    },
}
"""Task lists of the embedded stand-in questions, each with a description."""

PACKAGE = WorldPackage(TASK_LISTS, task_lists_replaced_by="SEARCHQA_DATA")
