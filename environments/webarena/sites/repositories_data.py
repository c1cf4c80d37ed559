"""Initial data of the repository host: users, and projects with their content and members."""

from __future__ import annotations

import sqlite3
from hashlib import sha1
from random import Random

from environments.webarena.sites.people import days_ago, people

USER, PASSWORD = "rowan", "granite-88"
"""The account of the tasks' agent."""
USER_NAME = "Rowan Vale"

SCHEMA = """
CREATE TABLE users (username TEXT PRIMARY KEY, password TEXT, name TEXT, status TEXT);
CREATE TABLE projects (path TEXT PRIMARY KEY, owner TEXT, description TEXT, language TEXT, licence TEXT, visibility TEXT, stars INTEGER);
CREATE TABLE files (project TEXT, name TEXT, content TEXT, PRIMARY KEY (project, name));
CREATE TABLE commits (project TEXT, sha TEXT, author TEXT, message TEXT, day TEXT);
CREATE TABLE issues (
    project TEXT, number INTEGER, title TEXT, body TEXT, author TEXT, assignee TEXT, label TEXT, state TEXT, day TEXT,
    PRIMARY KEY (project, number));
CREATE TABLE notes (project TEXT, issue INTEGER, author TEXT, body TEXT, day TEXT);
CREATE TABLE merge_requests (project TEXT, number INTEGER, title TEXT, author TEXT, branch TEXT, state TEXT);
CREATE TABLE project_members (project TEXT, username TEXT, role TEXT, PRIMARY KEY (project, username));
CREATE TABLE starred (username TEXT, project TEXT, PRIMARY KEY (username, project));
CREATE TABLE follows (username TEXT, followed TEXT, PRIMARY KEY (username, followed));
CREATE VIEW starred_projects AS SELECT p.*,
    p.stars + (SELECT count(*) FROM starred WHERE project = p.path) AS all_stars FROM projects p;
"""

ROLES = ("Guest", "Reporter", "Developer", "Maintainer", "Owner")
LABELS = ("bug", "feature", "question", "documentation")

_PROJECTS = {
    "ledger": ("Keeps the books of a small club", "Python"),
    "tidechart": ("Draws tables of the tides for any harbour", "Go"),
    "murmur": ("A tiny message queue in memory", "Rust"),
    "postbox": ("Reads mail and sorts it by rules", "Python"),
    "skylight": ("Tells when satellites pass overhead", "TypeScript"),
    "quern": ("Grinds text into word lists", "Go"),
    "bellows": ("Blows up test data to any size", "Python"),
    "trellis": ("Lays out plots on a page", "TypeScript"),
    "cairn": ("Marks a way through log files", "Rust"),
    "hopper": ("Feeds files into a pipeline one by one", "C"),
    "lantern": ("A viewer for very long tables", "C"),
    "rookery": ("Keeps many small servers in one place", "Go"),
}
_LICENCES = ("MIT", "Apache-2.0", "BSD-3-Clause", "GPL-3.0", "MPL-2.0")
_ISSUES = (
    ("Crash when the file is empty", "bug"),
    ("Dates before 1970 are wrong", "bug"),
    ("Add a quiet mode", "feature"),
    ("Which versions are supported?", "question"),
    ("The manual does not say how to install it", "documentation"),
    ("Sorting ignores capital letters", "bug"),
    ("Read settings from the environment", "feature"),
    ("Progress bar is missing", "feature"),
    ("Memory grows overnight", "bug"),
    ("An example with two inputs", "documentation"),
    ("Can it run without a network?", "question"),
    ("Colours are hard to read on white", "bug"),
)
_WORK = (
    "Fix a typing mistake",
    "Add tests for the parser",
    "Speed up reading",
    "Say what went wrong",
    "Remove dead code",
    "Update the manual",
    "Handle empty input",
)
_MERGES = (
    "Read files lazily",
    "Faster start",
    "Better messages",
    "Support big numbers",
    "New page in the manual",
)


def fill(db: sqlite3.Connection) -> None:
    """Insert the repository host's rows into empty tables."""
    random = Random("repositories")
    everyone = [
        (person.username.partition(".")[2] + "dev", person.name) for person in people()[:16]
    ]
    db.execute("INSERT INTO users VALUES (?, ?, ?, '')", (USER, PASSWORD, USER_NAME))
    db.executemany(
        "INSERT INTO users VALUES (?, ?, ?, '')",
        [(name, f"{name}-{random.randint(100, 999)}", real) for name, real in everyone],
    )
    names = [name for name, _ in everyone]
    stars = random.sample(range(4, 700), len(_PROJECTS))
    for number, (name, (description, language)) in enumerate(_PROJECTS.items()):
        owner = USER if number % 3 == 0 else names[number]
        path, licence = f"{owner}/{name}", random.choice(_LICENCES)
        db.execute(
            "INSERT INTO projects VALUES (?, ?, ?, ?, ?, 'Public', ?)",
            (path, owner, description, language, licence, stars[number]),
        )
        team = random.sample([other for other in names if other != owner], 4)
        roles = [(owner, "Owner"), *zip(team, random.sample(ROLES[:4], 4), strict=True)]
        if owner != USER and number % 2 == 0:
            roles.append((USER, "Developer"))
        db.executemany(
            "INSERT INTO project_members VALUES (?, ?, ?)",
            [(path, user, role) for user, role in roles],
        )
        port = random.randint(3000, 9000)
        readme = f"{name}\n{description}.\nRun it with: {name} --port {port}\nQuestions go to {team[0]}@{name}.example"
        files = {
            "README.md": readme,
            "LICENCE": f"This project is under the {licence} licence.",
            "CHANGES.md": f"Version {random.randint(1, 4)}.{random.randint(0, 9)}: repairs",
        }
        db.executemany(
            "INSERT INTO files VALUES (?, ?, ?)",
            [(path, file, content) for file, content in files.items()],
        )
        days = sorted(random.sample(range(1, 300), random.randint(8, 14)), reverse=True)
        for day in days:
            message = random.choice(_WORK)
            sha = sha1(f"{path} {day}".encode()).hexdigest()[:10]
            db.execute(
                "INSERT INTO commits VALUES (?, ?, ?, ?, ?)",
                (path, sha, random.choice([owner, *team]), message, days_ago(day)),
            )
        for issue, (title, label) in enumerate(random.sample(_ISSUES, random.randint(6, 10)), 1):
            state = "open" if random.random() < 0.7 else "closed"
            assignee = random.choice(["", "", *team])
            body = f"I saw this with {name} on {random.choice(('Monday', 'Friday', 'Sunday'))}. It would be good to have it looked at."
            db.execute(
                "INSERT INTO issues VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    path,
                    issue,
                    title,
                    body,
                    random.choice(names),
                    assignee,
                    label,
                    state,
                    days_ago(200 - issue * 9),
                ),
            )
        for merge, title in enumerate(random.sample(_MERGES, 3), 1):
            state = random.choice(("open", "merged", "closed"))
            branch = title.lower().replace(" ", "-")
            db.execute(
                "INSERT INTO merge_requests VALUES (?, ?, ?, ?, ?, ?)",
                (path, merge, title, random.choice(team), branch, state),
            )
    db.executemany("INSERT INTO follows VALUES (?, ?)", [(USER, names[0]), (names[3], USER)])
