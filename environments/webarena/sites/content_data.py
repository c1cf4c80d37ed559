"""Initial data of the content manager: a newspaper's staff, articles, comments and settings."""

from __future__ import annotations

import sqlite3
from random import Random

from environments.webarena.sites.pages import slug
from environments.webarena.sites.people import days_ago, people

EDITOR, PASSWORD = "admin", "harbour-05"
"""The account of the tasks' agent."""

SCHEMA = """
CREATE TABLE staff (username TEXT PRIMARY KEY, password TEXT, name TEXT, role TEXT);
CREATE TABLE articles (
    id INTEGER PRIMARY KEY, slug TEXT, title TEXT, section TEXT, author TEXT, status TEXT, body TEXT, day TEXT, views INTEGER);
CREATE TABLE article_comments (id INTEGER PRIMARY KEY, article INTEGER, reader TEXT, body TEXT, status TEXT);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT);
"""

SECTIONS = ("Town", "Culture", "Sport", "Nature", "Business", "Letters")
STATUSES = ("draft", "published", "archived")
COMMENT_STATES = ("pending", "approved", "spam")
STAFF_ROLES = ("Author", "Editor", "Administrator")

_TOPICS = {
    "Town": (
        "A new bridge over the {}",
        "The night bus reaches {}",
        "Who cleans the market in {}",
        "A school without bells in {}",
    ),
    "Culture": (
        "An evening of songs in {}",
        "The forgotten painter of {}",
        "A library on wheels visits {}",
        "Old films return to {}",
    ),
    "Sport": (
        "Rowers from {} win again",
        "A marathon around {}",
        "Chess in the park of {}",
        "The last match in {}",
    ),
    "Nature": (
        "Storks nest in {}",
        "The quiet bog near {}",
        "Counting bats in {}",
        "A hedge for every street of {}",
    ),
    "Business": (
        "A bakery opens in {}",
        "The shipyard of {} hires",
        "Wool from {} sells abroad",
        "A shop without money in {}",
    ),
    "Letters": (
        "Why I came back to {}",
        "A complaint from {}",
        "Thanks to the nurses of {}",
        "Our trees in {}",
    ),
}
_PLACES = ("Overby", "Saltmarsh", "Wexcombe", "Tarn End", "Low Fields", "Priory Hill", "Kingsferry")
_SENTENCES = (
    "Nobody had expected it so soon, least of all those who had asked for it.",
    "The council will talk about it again in April.",
    "Children from three villages came to see it for themselves.",
    "It cost less than was feared and more than was promised.",
    "What happens next depends on the weather and on a signature.",
)
_COMMENTS = (
    "At last somebody writes about this!",
    "My grandfather remembered it quite differently.",
    "Cheap watches, only today, write to me at once.",
    "Could you please print the opening hours?",
    "I was there and it was louder than you say.",
    "You have won a prize, open my page to get it.",
    "Very well written, thank you.",
)


def fill(db: sqlite3.Connection) -> None:
    """Insert the content manager's rows into empty tables."""
    random = Random("content")
    writers = people()[10:17]
    db.execute("INSERT INTO staff VALUES (?, ?, 'Agnes Moor', 'Administrator')", (EDITOR, PASSWORD))
    db.executemany(
        "INSERT INTO staff VALUES (?, ?, ?, ?)",
        [
            (
                writer.username,
                f"{writer.username}-{random.randint(100, 999)}",
                writer.name,
                random.choice(STAFF_ROLES[:2]),
            )
            for writer in writers
        ],
    )
    stories = [
        (section, topic.format(place))
        for section, topics in _TOPICS.items()
        for topic in topics
        for place in random.sample(_PLACES, 2)
    ]
    random.shuffle(stories)
    readers = [person.name for person in people()[:10]]
    views = random.sample(range(20, 9_000), len(stories))
    for number, (section, title) in enumerate(stories, 1):
        status = random.choice(("published", "published", "draft", "draft", "archived"))
        body = " ".join(random.sample(_SENTENCES, 3))
        seen = 0 if status == "draft" else views[number - 1]
        day = days_ago(300 - number * 5)
        row = (
            number,
            slug(title),
            title,
            section,
            random.choice(writers).name,
            status,
            body,
            day,
            seen,
        )
        db.execute("INSERT INTO articles VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        if status == "published":
            for reader in random.sample(readers, random.randint(1, 3)):
                state = random.choice(("pending", "pending", "approved"))
                add = "INSERT INTO article_comments (article, reader, body, status) VALUES (?, ?, ?, ?)"
                db.execute(add, (number, reader, random.choice(_COMMENTS), state))
    settings = {
        "title": "The Saltmarsh Courier",
        "tagline": "News from both banks of the river",
        "contact": "desk@courier.example",
        "per_page": "20",
    }
    db.executemany("INSERT INTO settings VALUES (?, ?)", list(settings.items()))
