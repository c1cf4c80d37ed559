"""A corpus folder: passages, index, questions and task lists. Both sources write this format.

    library.json     metadata, see `About`
    passages.jsonl   one {"id", "contents": "title\\ntext"} a line, as in FlashRAG and Search-R1
    questions.jsonl  line `index` is the question of task `index`
    lists.json       task indices by list
    bm25/ or vectors.faiss
    NAME/bm25/       index of a collection: passages searched only for that collection's questions

Large files are memory-mapped, so the processes of a server share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from environments.environment import TaskIndexError, WorldError
from environments.searchqa.memory_mapped_lines import LineWriter, MappedLines

FORMAT = 1
PASSAGES = "passages.jsonl"
QUESTIONS = "questions.jsonl"
LISTS = "lists.json"
ABOUT = "library.json"


class SearchDataError(WorldError):
    """Passages or questions are missing, unreadable or invalid. The message states the fix."""


class Hop(msgspec.Struct, frozen=True, omit_defaults=True):
    """One search towards a question's answer.

    Attributes:
        passage: Number of the passage that it must find.
        finds: What this passage states, as a sentence. Empty if unknown.
    """

    query: str
    passage: int
    finds: str = ""


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """One question with its gold answers.

    Attributes:
        answers: Every correct answer.
        group: The published set, e.g. "nq-test". For an embedded question, its template.
        hops: The searches that lead to the answer. Empty if they are unknown.
        collection: The collection searched for this question. Empty means the main index.
    """

    question: str
    answers: tuple[str, ...]
    group: str
    hops: tuple[Hop, ...] = ()
    collection: str = ""


class Passage(msgspec.Struct):
    """One line of a corpus: either `contents`, or `title` and `text`."""

    contents: str = ""
    title: str = ""
    text: str = ""

    @property
    def full(self) -> str:
        """The title, a newline and the text."""
        return self.contents or f"{self.title}\n{self.text}"


class About(msgspec.Struct):
    """The content of library.json.

    Attributes:
        source: "facts" or "published".
        version: Digest of the content. Corpora of equal version ask the same questions and answer
            every search alike.
        retriever: "bm25" or "dense".
        encoder: Name or folder of the embedding model. None for "bm25".
        licences: Data sources and their licences.
        collections: Names of the separately indexed collections, see `Question.collection`.
        format: Version of the folder format.
    """

    source: str
    version: str
    retriever: str
    passages: int
    encoder: str | None = None
    licences: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    format: int = FORMAT


class Corpus:
    """An opened corpus folder.

    Attributes:
        about: The content of library.json.
        lists: Task indices in ascending order, by list name.
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder.

        Raises:
            SearchDataError: The folder is not a corpus, or has another format version.
        """
        self.folder = folder
        try:
            self.about = msgspec.json.decode((folder / ABOUT).read_bytes(), type=About)
            if self.about.format != FORMAT:
                raise ValueError(f"it has format {self.about.format}, this program reads {FORMAT}")
            self._passages = MappedLines(folder / PASSAGES)
            self._questions = MappedLines(folder / QUESTIONS)
            self.lists: Mapping[str, tuple[int, ...]] = msgspec.json.decode(
                (folder / LISTS).read_bytes(), type=dict[str, tuple[int, ...]]
            )
        except (OSError, ValueError, EOFError) as fault:  # msgspec's errors are ValueErrors
            raise SearchDataError(
                f"{folder} cannot be opened ({fault}); build it again: {BUILD_HELP}"
            ) from fault

    def question(self, index: int) -> Question:
        """Return the question of task `index`.

        Raises:
            TaskIndexError: No task has this index.
        """
        line = self._questions[index] if 0 <= index < len(self._questions) else b""
        if not line:
            if self.about.source == "facts":
                more = ""
            else:
                more = "; ids of question sets that were not given to the build have none"
            raise TaskIndexError(
                f"searchqa has no task {index}; its tasks are among 0 to "
                f"{len(self._questions) - 1}{more}"
            )
        return _question_of(line)

    def passage(self, number: int) -> str:
        """Return a passage by number: the title, a newline and the text."""
        return passage_of(self._passages[number]).full


BUILD_HELP = "python -m environments.searchqa.build --help"

passage_of = msgspec.json.Decoder(Passage).decode
_question_of = msgspec.json.Decoder(Question).decode


def write_questions(
    folder: Path, questions: Mapping[int, Question], lists: Mapping[str, Sequence[int]]
) -> None:
    """Write the questions by task index and the task lists, both in ascending order."""
    with LineWriter(folder / QUESTIONS) as file:
        for index, question in sorted(questions.items()):
            file.skip_to(index)
            file.write(msgspec.json.encode(question))
    (folder / LISTS).write_bytes(
        msgspec.json.encode({name: sorted(some) for name, some in lists.items()})
    )


def finish(folder: Path, about: About, ranked_by: str) -> About:
    """Write library.json with a version derived from everything that affects questions and results.

    Args:
        folder: The folder that holds the other files.
        about: The metadata. Its `version` is overwritten.
        ranked_by: Anything else that affects the ranking, e.g. the search library's version.

    Returns:
        `about` with its version.
    """
    # The version must not depend on the model's location.
    encoder = Path(about.encoder).name if about.encoder else None
    digest = hashlib.sha256(f"{FORMAT} {about.retriever} {encoder} {ranked_by}".encode())
    for name in (PASSAGES, QUESTIONS, LISTS):
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    about.version = f"{about.source}-{digest.hexdigest()[:12]}"
    (folder / ABOUT).write_bytes(msgspec.json.format(msgspec.json.encode(about)))
    return about
