"""SearchQA: an agent searches passages and answers a question, scored by exact match."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from configs.rules import Rules
from environments.environment import (
    Environment,
    EpisodeOverError,
    InvalidActionError,
    OracleError,
    Script,
    Step,
    World,
    version_under,
)
from environments.searchqa.actions import MAX_CHARACTERS, AnswerFormError, parse_action
from environments.searchqa.corpus import Corpus, Question
from environments.searchqa.facts.cache import facts_corpus
from environments.searchqa.retrieval.encoder import Encoder
from environments.searchqa.retrieval.retriever import Retriever, open_retriever
from environments.searchqa.sampling import shuffle_key
from environments.searchqa.scoring import exact_match
from environments.searchqa.scripts import CHOICES, play
from environments.searchqa.settings import Settings
from environments.searchqa.tools import TOOLS

NAME = re.compile(r"[A-Z][\w.'-]*(?: [A-Z][\w.'-]*)*|\d[\d.,]*")
"""Capitalised words or a number: the form of a typical answer."""
SHOWN = 3
"""Number of passages that a search returns."""
INSTRUCTION = (
    "You answer a question with the help of a search engine. Every message of yours holds one "
    "action:\n"
    "<search>query</search>: look something up; the three passages that fit the query best come "
    "back between <information> and "
    "</information>\n"
    "<answer>text</answer>: give the final answer\n"
    "A question may take several searches, one building on what another found. The answer is a "
    "name, a number or a few words, "
    "without explanation."
)
ONE_ATTEMPT = (
    "There is one attempt: search until you are sure. A message without a search is your answer, "
    "and in any other form it is wrong."
)
MORE_ATTEMPTS = "After a wrong answer you may go on."
STAND_IN = "stand-ins made of facts from installed packages; docs/searchqa-wikipedia.md sets up the published questions over Wikipedia"
MANY_PASSAGES = 1_000_000
"""Above this number of passages a search is slow enough to block other requests."""


class SearchQAEnvironment(Environment):
    """One session. A right answer ends the episode with reward 1, a wrong one with reward 0.

    `Settings` can change both. `format_reward` gives part of the reward for the form of the
    messages. Without `wrong_ends` the episode continues after a wrong answer.

    Attributes:
        task: The question. None if no episode is in progress.
        found: Numbers of the passages that the episode's searches have returned.
    """

    __slots__ = (
        "_corpus",
        "_retrievers",
        "_searched",
        "_settings",
        "_well_formed",
        "found",
        "task",
    )

    def __init__(
        self, corpus: Corpus, retrievers: Mapping[str, Retriever], settings: Settings
    ) -> None:
        self._corpus = corpus
        self._retrievers = retrievers
        self._settings = settings
        self.task: Question | None = None
        self.found: set[int] = set()
        self._searched = False
        self._well_formed = True

    def reset(self, index: int) -> str:
        """Start task `index`, see `Environment.reset`."""
        self.task = self._corpus.question(index)
        self.found = set()
        self._searched = False
        self._well_formed = True
        return f"Question: {self.task.question}"

    def step(self, action: str) -> Step:
        """Search or answer, see `Environment.step`.

        A malformed answer counts as a wrong answer if wrong answers end the episode. A malformed
        search is refused. Under AgentGym's rules both are refused, as in AgentGym's servers.
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
            return Step(
                f"{refused} A message without a search is an answer, and this one is wrong.",
                0.0,
                True,
            )
        self._well_formed = self._well_formed and meant.well_formed
        if meant.kind == "search":
            return Step(self._search(meant.text, self.task), 0.0, False)
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
        """The question. Empty if no episode is in progress."""
        return self.task.question if self.task else ""

    def valid_actions(self) -> list[str]:
        """List searches for the question and for names read so far, and answers with those names.

        See `Environment.valid_actions`.
        """
        if self.task is None:
            raise EpisodeOverError("no SearchQA episode is in progress; reset first")
        read = [self._corpus.passage(number) for number in sorted(self.found)]
        names = list(
            dict.fromkeys(
                name for text in [self.task.question, *read] for name in NAME.findall(text)
            )
        )
        searches = [
            f"<search>{text}</search>" for text in [self.task.question[:MAX_CHARACTERS], *names]
        ]
        return [*searches, *(f"<answer>{name}</answer>" for name in names)]

    def oracle_action(self) -> str:
        """Return the search of the next missing hop, or the answer once all hops are found.

        See `Environment.oracle_action`.
        """
        if self.task is None:
            raise OracleError("no SearchQA episode is in progress")
        hop = self._next_hop(self.task)
        return f"<search>{hop}</search>" if hop else f"<answer>{self.task.answers[0]}</answer>"

    def oracle_thought(self) -> str:
        """Return what the last missing passage stated, e.g. "The lake of Badok Defam is Lake Habim."

        Empty before the first passage, and if the corpus does not contain what its passages state.
        """
        if self.task is None:
            raise OracleError("no SearchQA episode is in progress")
        found = [
            hop.finds for hop in takewhile(lambda hop: hop.passage in self.found, self.task.hops)
        ]
        return found[-1] if found else ""

    def close(self) -> None:
        """End the episode."""
        self.task = None
        self.found = set()

    def _search(self, query: str, task: Question) -> str:
        self._searched = True
        lines = []
        for place, number in enumerate(ranked(self._retrievers[task.collection], query, task), 1):
            self.found.add(number)
            title, _, text = self._corpus.passage(number).partition("\n")
            lines.append(f"Doc {place}(Title: {title}) {text}")
        found = "\n".join(lines) or "No passage was found."
        return f"<information>{found}</information>"

    def _next_hop(self, task: Question) -> str | None:
        if task.hops:
            return next((hop.query for hop in task.hops if hop.passage not in self.found), None)
        return None if self._searched else task.question[:MAX_CHARACTERS]


class SearchQA(World):
    """The world, see `World`. The available task lists depend on the source of the questions.

    Without settings the questions and passages are stand-ins generated from installed packages.
    Their scores are not comparable with scores on the published questions over Wikipedia, which
    docs/searchqa-wikipedia.md sets up.

    Attributes:
        stand_in: Description of the stand-in data. Empty if the published questions are used.
        blocking: Whether a search is slow enough that the server should run it in a thread.
    """

    name = "searchqa"
    tools = TOOLS

    def __init__(
        self,
        settings: Settings | None = None,
        encoder: Encoder | None = None,
        rules: Rules = "ours",
    ) -> None:
        """Open the questions and passages. The embedded corpus is built first if it is missing.

        Args:
            settings: Source of the questions and judging rules. Default: the environment variables.
            encoder: Query encoder for a dense corpus. Default: the model named in the corpus.
            rules: Under "agentgym" a wrong answer never ends the episode, and the last of several
                answers in a message counts.

        Raises:
            SettingsError: An environment variable has an invalid value.
            SearchDataError: The corpus is missing or cannot be built.
        """
        settings = settings or Settings.read()
        self.rules = rules
        self._settings = (
            settings if rules == "ours" else replace(settings, wrong_ends=False, last_answer=True)
        )
        self._corpus = Corpus(self._settings.data or facts_corpus(self._settings.cache))
        about = self._corpus.about
        self.stand_in = STAND_IN if about.source == "facts" else ""
        self._retrievers = {"": open_retriever(self._corpus.folder, encoder or about.encoder)}
        for collection in about.collections:
            self._retrievers[collection] = open_retriever(self._corpus.folder / collection, None)
        self.blocking = about.retriever == "dense" or about.passages > MANY_PASSAGES
        suffixes = (
            (rules == "ours", "-strict" if self._settings.wrong_ends else "-guessing"),
            (self._settings.format_reward, f"-form{self._settings.format_reward:g}"),
        )
        self.instruction = (
            f"{INSTRUCTION} {ONE_ATTEMPT if self._settings.wrong_ends else MORE_ATTEMPTS}"
        )
        self.version = version_under(
            rules, about.version + "".join(suffix for applies, suffix in suffixes if applies)
        )

    def create(self) -> SearchQAEnvironment:
        """Create a session, which must be reset before its first step."""
        return SearchQAEnvironment(self._corpus, self._retrievers, self._settings)

    @property
    def lists(self) -> Mapping[str, Sequence[int]]:
        """All task lists of the opened corpus."""
        return self._corpus.lists

    @property
    def scripts(self) -> Mapping[str, Script]:
        """Scripts for questions about islands. See `World.scripts`."""
        if self.stand_in:
            return {name: partial(play, choose) for name, choose in CHOICES.items()}
        return {}

    def tag(self, index: int) -> str:
        """Return the kind of a question: its set, its number of hops, or the right passages' places.

        Examples: "nq-test", "hops 2". A question about islands is "right passage first" if each
        search of the oracle shows the right passage first, otherwise "right passage not first".
        """
        question = self._corpus.question(index)
        if not question.collection:
            return f"hops {len(question.hops)}" if question.hops else question.group
        shown = (
            ranked(self._retrievers[question.collection], hop.query, question)
            for hop in question.hops
        )
        places = [found.index(hop.passage) for found, hop in zip(shown, question.hops, strict=True)]
        return "right passage not first" if any(places) else "right passage first"


def ranked(retriever: Retriever, query: str, question: Question) -> list[int]:
    """Return the passages that a search shows, in the order shown.

    In a collection the order is random, fixed by the question: the ranks would give the answer
    away.
    """
    found = retriever.search(query, SHOWN)
    if question.collection:
        return sorted(found, key=lambda number: shuffle_key(question.question, str(number)))
    return found
