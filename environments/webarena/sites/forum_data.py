"""Initial data of the forum: members, forums, submissions and comments."""

from __future__ import annotations

import sqlite3
from random import Random

from environments.webarena.sites.pages import slug
from environments.webarena.sites.people import days_ago, people

MEMBER, PASSWORD = "fernweh", "meadow-17"
"""The account of the tasks' agent."""

SCHEMA = """
CREATE TABLE members (username TEXT PRIMARY KEY, password TEXT, bio TEXT);
CREATE TABLE forums (name TEXT PRIMARY KEY, description TEXT);
CREATE TABLE submissions (id INTEGER PRIMARY KEY, forum TEXT, author TEXT, title TEXT, slug TEXT, body TEXT, day TEXT, score INTEGER);
CREATE TABLE comments (id INTEGER PRIMARY KEY, submission INTEGER, author TEXT, body TEXT, day TEXT);
CREATE TABLE votes (member TEXT, submission INTEGER, value INTEGER, PRIMARY KEY (member, submission));
CREATE TABLE subscriptions (member TEXT, forum TEXT, PRIMARY KEY (member, forum));
CREATE VIEW rated_submissions AS SELECT s.id, s.forum, s.author, s.title, s.slug, s.body, s.day,
    s.score + coalesce((SELECT sum(value) FROM votes WHERE submission = s.id), 0) AS score,
    (SELECT count(*) FROM comments WHERE submission = s.id) AS comments FROM submissions s;
"""

_FORUMS = {
    "gardening": (
        "Everything that grows",
        (
            "tomatoes on a balcony",
            "slugs in the lettuce",
            "pruning old roses",
            "a compost heap",
            "seeds from a friend",
        ),
    ),
    "cycling": (
        "Two wheels and no engine",
        (
            "a squeaking chain",
            "tyres for gravel",
            "riding in the rain",
            "a route along the river",
            "lights for winter",
        ),
    ),
    "baking": (
        "Bread, cakes and failures",
        (
            "a flat sourdough",
            "rye without sugar",
            "a crust that stays crisp",
            "plum cake",
            "an old oven",
        ),
    ),
    "photography": (
        "Light and patience",
        (
            "film from the attic",
            "portraits by a window",
            "a lens for birds",
            "scanning negatives",
            "night in the city",
        ),
    ),
    "boardgames": (
        "Dice, cards and long evenings",
        (
            "a game for two",
            "teaching children to lose",
            "lost pieces",
            "rules that nobody reads",
            "a wooden box",
        ),
    ),
    "astronomy": (
        "Looking up",
        (
            "a first telescope",
            "the rings of Saturn",
            "a comet in the morning",
            "dark places nearby",
            "drawing craters",
        ),
    ),
    "languages": (
        "Words of other people",
        (
            "learning Welsh",
            "films without subtitles",
            "a dictionary from 1910",
            "talking to oneself",
            "verbs that change",
        ),
    ),
    "woodwork": (
        "Saws, planes and splinters",
        (
            "a chair that rocks",
            "sharpening a plane",
            "oil or wax",
            "a table from old beams",
            "dovetails by hand",
        ),
    ),
}
_ASKS = (
    "Your experience with {}?",
    "I finally tried {}",
    "Help needed: {}",
    "What nobody tells you about {}",
)
_BODIES = (
    "I have been at this for three weeks now and I am not getting any further. What would you do?",
    "It took me two evenings, a lot of tea and one call to my aunt, but it worked in the end.",
    "There is little to be found about it in books, so I would like to collect what people here "
    "know.",
    "My neighbour laughed when I told her, and then she showed me hers.",
)
_REPLIES = (
    "Start small and write down what you change.",
    "I had the same last year. Waiting helped more than anything I did.",
    "Please post a picture when it is done!",
    "There was a thread about this in spring that is worth reading.",
    "Do the opposite of what the label says.",
    "A friend of mine does this for a living and says that practice is all.",
    "Thank you, this is the first explanation that I understand.",
)
_BIOS = (
    "Reads more than writes.",
    "Here since the beginning.",
    "Collects stamps and questions.",
    "Asks first, thinks later.",
    "Mostly harmless.",
)


def fill(db: sqlite3.Connection) -> None:
    """Insert the forum's rows into empty tables."""
    random = Random("forum")
    names = [person.username.replace(".", "_") for person in people()[6:22]]
    db.executemany(
        "INSERT INTO members VALUES (?, ?, ?)",
        [
            (
                name,
                f"{name}-{random.randint(100, 999)}",
                f"{random.choice(_BIOS)} Joined from "
                f"{random.choice(('the north', 'the south', 'an island'))}.",
            )
            for name in names
        ],
    )
    db.execute("INSERT INTO members VALUES (?, ?, 'New here.')", (MEMBER, PASSWORD))
    db.executemany(
        "INSERT INTO forums VALUES (?, ?)",
        [(name, description) for name, (description, _) in _FORUMS.items()],
    )
    threads = [
        (forum, topic, ask)
        for forum, (_, topics) in _FORUMS.items()
        for topic in topics
        for ask in random.sample(_ASKS, 2)
    ]
    random.shuffle(threads)
    scores = random.sample(range(3, 900), len(threads))
    for number, ((forum, topic, ask), score) in enumerate(zip(threads, scores, strict=True)):
        title, day = ask.format(topic), 400 - number * 4
        author = MEMBER if number % 9 == 4 else random.choice(names)
        row = (
            number + 1,
            forum,
            author,
            title,
            slug(title),
            random.choice(_BODIES),
            days_ago(day),
            score,
        )
        db.execute("INSERT INTO submissions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        for reply in random.sample(_REPLIES, random.randint(0, len(_REPLIES))):
            db.execute(
                "INSERT INTO comments (submission, author, body, day) VALUES (?, ?, ?, ?)",
                (number + 1, random.choice(names), reply, days_ago(day - random.randint(0, 3))),
            )
    db.executemany(
        "INSERT INTO subscriptions VALUES (?, ?)", [(MEMBER, "baking"), (MEMBER, "astronomy")]
    )
