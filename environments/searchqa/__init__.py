"""SearchQA: answer a question by searching a collection of passages, over several turns.

By default questions and passages are stand-ins, made of installed packages' facts or about made-up islands; SEARCHQA_DATA names the
published ones.
"""

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
"""The task lists of the embedded questions, which are stand-ins for the published ones, and what each holds."""

TASK_LISTS_REPLACED_BY = "SEARCHQA_DATA"
"""With this variable set the tasks, and with them the lists, are others."""

RENAMED_TASK_LISTS = {
    "searchqa-400": "searchqa-ours-400",
}
"""Names that lists once had, and those that they have now."""
