"""A folder of passages, their index, questions and task lists: what both sources build and the world opens.

    library.json     what it is
    passages.jsonl   one {"id", "contents": "title\\ntext"} a line, as FlashRAG and Search-R1 publish their corpora
    questions.jsonl  line `index` is the question of task `index`
    lists.json       task indices by list
    bm25/ or vectors.npy or vectors.faiss
    NAME/bm25/       the index of a collection: the passages that some questions search in place of the others

Everything that is large is read through memory maps, so that the processes of a server share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from environments.environment import TaskIndexError, WorldError
from environments.searchqa import RENAMED_TASK_LISTS
from environments.searchqa.memory_mapped_lines import LineWriter, MappedLines

FORMAT = 1
PASSAGES, QUESTIONS, LISTS, ABOUT = "passages.jsonl", "questions.jsonl", "lists.json", "library.json"


class SearchDataError(WorldError):
    """The passages or questions are missing, unreadable or not what they should be; the text says what to do."""


class Hop(msgspec.Struct, frozen=True):
    """A search that helps to answer a question, and the number of the passage that it finds."""

    query: str
    passage: int


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question.

    Attributes:
        question: The text.
        answers: Every answer that is right.
        group: The published set or, of the embedded questions, the template.
        hops: The searches that lead to the answer, where they are known.
        collection: The passages that are searched for it; "" for those that most questions search.
    """

    question: str
    answers: tuple[str, ...]
    group: str
    hops: tuple[Hop, ...] = ()
    collection: str = ""


class Passage(msgspec.Struct):
    """A line of a corpus: `contents`, or `title` and `text`."""

    contents: str = ""
    title: str = ""
    text: str = ""

    @property
    def full(self) -> str:
        """Title, line end, text."""
        return self.contents or f"{self.title}\n{self.text}"


class About(msgspec.Struct):
    """library.json.

    Attributes:
        source: "facts" or "published".
        version: Tells contents apart: the same version answers every search and asks every question in the same way.
        retriever: "bm25" or "dense".
        encoder: The model that turns text into vectors, for "dense".
        passages: How many.
        licences: Whose data it is.
        collections: Names of those that some questions search, see `Question.collection`.
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
    """An opened folder.

    Attributes:
        folder: Which.
        about: What it is.
        lists: Task indices by the list's name, ascending.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the folder.

        Raises:
            SearchDataError: It is no corpus, or one of another format.
        """
        self.folder = folder
        try:
            self.about = msgspec.json.decode((folder / ABOUT).read_bytes(), type=About)
            if self.about.format != FORMAT:
                raise ValueError(f"it has format {self.about.format}, this program reads {FORMAT}")
            self._passages = MappedLines(folder / PASSAGES)
            self._questions = MappedLines(folder / QUESTIONS)
            lists = msgspec.json.decode((folder / LISTS).read_bytes(), type=dict[str, tuple[int, ...]])
            self.lists: Mapping[str, tuple[int, ...]] = {RENAMED_TASK_LISTS.get(name, name): some for name, some in lists.items()}
        except (OSError, ValueError, EOFError) as fault:  # msgspec's errors are ValueErrors
            raise SearchDataError(f"{folder} cannot be opened ({fault}); build it anew: {BUILD_HELP}") from fault

    def question(self, index: int) -> Question:
        """The question of task `index`.

        Raises:
            TaskIndexError: There is none.
        """
        line = self._questions[index] if 0 <= index < len(self._questions) else b""
        if not line:
            more = "" if self.about.source == "facts" else "; ids of question sets that were not given to the build have none"
            raise TaskIndexError(f"searchqa has no task {index}; its tasks are among 0 to {len(self._questions) - 1}{more}")
        return _question_of(line)

    def passage(self, number: int) -> str:
        """Title, line end, text of a passage."""
        return passage_of(self._passages[number]).full


BUILD_HELP = "python -m environments.searchqa.build --help"

passage_of = msgspec.json.Decoder(Passage).decode
_question_of = msgspec.json.Decoder(Question).decode


def write_questions(folder: Path, questions: Mapping[int, Question], lists: Mapping[str, Sequence[int]]) -> None:
    """Writes the questions by task index and the task lists, each in ascending order."""
    with LineWriter(folder / QUESTIONS) as file:
        for index, question in sorted(questions.items()):
            file.skip_to(index)
            file.write(msgspec.json.encode(question))
    (folder / LISTS).write_bytes(msgspec.json.encode({name: sorted(some) for name, some in lists.items()}))


def finish(folder: Path, about: About, ranked_by: str) -> About:
    """Writes library.json with a version made of all that decides what is asked and what is found.

    Args:
        folder: Where the other files are.
        about: What it is, its version still to be made.
        ranked_by: What else decides the ranking, e.g. the search library's version.
    """
    encoder = Path(about.encoder).name if about.encoder else None  # wherever it is
    digest = hashlib.sha256(f"{FORMAT} {about.retriever} {encoder} {ranked_by}".encode())
    for name in (PASSAGES, QUESTIONS, LISTS):
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    about.version = f"{about.source}-{digest.hexdigest()[:12]}"
    (folder / ABOUT).write_bytes(msgspec.json.format(msgspec.json.encode(about)))
    return about
