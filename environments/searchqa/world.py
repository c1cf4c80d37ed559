"""SearchQA: an agent searches passages and answers a question; the answer counts if it matches a gold answer exactly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from configs.rules import Rules
from environments.environment import EpisodeOverError, InvalidActionError, OracleError, Step, version_under
from environments.searchqa import RENAMED_TASK_LISTS
from environments.searchqa.actions import MAX_CHARACTERS, AnswerFormError, parse_action
from environments.searchqa.corpus import Corpus, Question
from environments.searchqa.facts.cache import facts_corpus
from environments.searchqa.retrieval.encoder import Encoder
from environments.searchqa.retrieval.retriever import Retriever, open_retriever
from environments.searchqa.scoring import exact_match
from environments.searchqa.settings import Settings
from environments.task_lists import named

NAME = re.compile(r"[A-Z][\w.'-]*(?: [A-Z][\w.'-]*)*|\d[\d.,]*")
"""Words that begin with a capital, or a number: what an answer may look like."""
SHOWN = 3
"""Passages that a search shows."""
INSTRUCTION = (
    "You answer a question with the help of a search engine. Every message of yours holds one action:\n"
    "<search>query</search>: look something up; the three passages that fit the query best come back between <information> and "
    "</information>\n"
    "<answer>text</answer>: give the final answer\n"
    "A question may take several searches, one building on what another found. The answer is a name, a number or a few words, "
    "without explanation."
)
ONE_ATTEMPT = (
    "There is one attempt: search until you are sure. A message without a search is your answer, and in any other form it is wrong."
)
MORE_ATTEMPTS = "After a wrong answer you may go on."
STAND_IN = "stand-ins made of facts from installed packages; docs/searchqa-wikipedia.md sets up the published questions over Wikipedia"
MANY_PASSAGES = 1_000_000
"""From so many on a search takes long enough to keep other requests waiting."""


class SearchQAEnvironment:
    """One session. A right answer ends the episode with reward 1, a wrong one ends it with 0.

    Attributes:
        task: The question; None when no episode is in progress.
        found: Numbers of the passages that the episode's searches have shown.
    """

    __slots__ = ("_corpus", "_retrievers", "_searched", "_settings", "_well_formed", "found", "task")

    def __init__(self, corpus: Corpus, retrievers: Mapping[str, Retriever], settings: Settings) -> None:
        self._corpus = corpus
        self._retrievers = retrievers
        self._settings = settings
        self.task: Question | None = None
        self.found: set[int] = set()
        self._searched = False
        self._well_formed = True

    def reset(self, index: int) -> str:
        """Begins task `index`; see `Environment.reset`."""
        self.task = self._corpus.question(index)
        self.found = set()
        self._searched = False
        self._well_formed = True
        return f"Question: {self.task.question}"

    def step(self, action: str) -> Step:
        """Search or answer; see `Environment.step`.

        An answer in a wrong form is a wrong answer: where a wrong answer ends the episode, it does too. A search in a wrong form is
        refused. Under AgentGym's rules both are refused, as there.
        """
        if self.task is None:
            raise EpisodeOverError("no SearchQA episode is in progress; reset first")
        try:
            meant = parse_action(action, last_answer=self._settings.last_answer)
        except InvalidActionError as refused:
            self._well_formed = False
            if not (self._settings.wrong_ends and isinstance(refused, AnswerFormError)):
                return Step(str(refused), 0.0, False, refused=True)
            self.task = None
            return Step(f"{refused} A message without a search is an answer, and this one is wrong.", 0.0, True)
        self._well_formed = self._well_formed and meant.well_formed
        if meant.kind == "search":
            return Step(self._search(meant.text, self.task.collection), 0.0, False)
        share = self._settings.format_reward
        if exact_match(meant.text, self.task.answers):
            self.task = None
            return Step("The answer is right.", 1.0 if self._well_formed else 1.0 - share, True)
        if not self._settings.wrong_ends:
            return Step("The answer is wrong. Search more or give another answer.", 0.0, False)
        self.task = None
        return Step("The answer is wrong.", share if self._well_formed else 0.0, True)

    @property
    def objective(self) -> str:
        """The question; empty when no episode is in progress."""
        return self.task.question if self.task else ""

    def valid_actions(self) -> list[str]:
        """Searching for the question or a name that was read, or answering with such a name; see `EnumerableEnvironment`."""
        if self.task is None:
            raise EpisodeOverError("no SearchQA episode is in progress; reset first")
        read = [self._corpus.passage(number) for number in sorted(self.found)]
        names = list(dict.fromkeys(name for text in [self.task.question, *read] for name in NAME.findall(text)))
        searches = [f"<search>{text}</search>" for text in [self.task.question[:MAX_CHARACTERS], *names]]
        return [*searches, *(f"<answer>{name}</answer>" for name in names)]

    def oracle_action(self) -> str:
        """Searches for what is still to be found, hop by hop, then the answer; see `Environment.oracle_action`."""
        if self.task is None:
            raise OracleError("no SearchQA episode is in progress")
        hop = self._next_hop(self.task)
        return f"<search>{hop}</search>" if hop else f"<answer>{self.task.answers[0]}</answer>"

    def close(self) -> None:
        """Ends the episode."""
        self.task = None
        self.found = set()

    def _search(self, query: str, collection: str) -> str:
        self._searched = True
        lines = []
        for place, number in enumerate(self._retrievers[collection].search(query, SHOWN), 1):
            self.found.add(number)
            title, _, text = self._corpus.passage(number).partition("\n")
            lines.append(f"Doc {place}(Title: {title}) {text}")
        found = "\n".join(lines) or "No passage was found."
        return f"<information>{found}</information>"

    def _next_hop(self, task: Question) -> str | None:
        if task.hops:
            return next((hop.query for hop in task.hops if hop.passage not in self.found), None)
        return None if self._searched else task.question[:MAX_CHARACTERS]


class SearchQA:
    """The world; see `World`. Which task lists `tasks` knows depends on the source of the questions.

    Without settings the questions and passages are stand-ins, made of facts that installed packages hold. A score on them cannot be
    compared with one on the published questions over Wikipedia, which docs/searchqa-wikipedia.md sets up.

    Attributes:
        stand_in: What stands in for the published questions, "" where they are asked themselves.
        blocking: Whether a search takes long enough that the server should run it in a thread.
    """

    name = "searchqa"

    def __init__(self, settings: Settings | None = None, encoder: Encoder | None = None, rules: Rules = "ours") -> None:
        """Opens the questions and passages that the settings name; the embedded ones are built first where they are missing.

        Args:
            settings: Default: what the environment variables say.
            encoder: What turns queries into vectors, for a corpus of vectors; default: the model that the corpus names.
            rules: Under "agentgym" a wrong answer never ends the episode, and of several answers in a message the last one counts.

        Raises:
            SettingsError: An environment variable is not understood.
            SearchDataError: There are no such questions and passages, or they cannot be built.
        """
        settings = settings or Settings.read()
        self.rules = rules
        self._settings = settings if rules == "ours" else replace(settings, wrong_ends=False, last_answer=True)
        self._corpus = Corpus(self._settings.data or facts_corpus(self._settings.cache))
        about = self._corpus.about
        self.stand_in = STAND_IN if about.source == "facts" else ""
        self._retrievers = {"": open_retriever(self._corpus.folder, encoder or about.encoder)}
        for collection in about.collections:
            self._retrievers[collection] = open_retriever(self._corpus.folder / collection, None)
        self.blocking = about.retriever == "dense" or about.passages > MANY_PASSAGES
        changes = (
            (rules == "ours", "-strict" if self._settings.wrong_ends else "-guessing"),
            (self._settings.format_reward, f"-form{self._settings.format_reward:g}"),
        )
        self.instruction = f"{INSTRUCTION} {ONE_ATTEMPT if self._settings.wrong_ends else MORE_ATTEMPTS}"
        self.version = version_under(rules, about.version + "".join(said for changed, said in changes if changed))

    def create(self) -> SearchQAEnvironment:
        """A new session, before its first reset."""
        return SearchQAEnvironment(self._corpus, self._retrievers, self._settings)

    def tasks(self, name: str) -> tuple[int, ...]:
        """The task indices of a split or of another named list, ascending.

        Raises:
            KeyError: No list has this name; the message names those that exist.
        """
        return named(self._corpus.lists, name, self.name, RENAMED_TASK_LISTS)

    @property
    def lists(self) -> Mapping[str, Sequence[int]]:
        """Every task list; of published questions their own."""
        return self._corpus.lists

    def tag(self, index: int) -> str:
        """Of a published question its set, e.g. "nq-test"; of an embedded one how many searches lead to the answer, e.g. "hops 2"."""
        question = self._corpus.question(index)
        return f"hops {len(question.hops)}" if question.hops else question.group
