"""Intent templates of the forum."""

from __future__ import annotations

from collections.abc import Iterable

from environments.webarena.intents.intent import (
    Catalogue,
    Facts,
    Instance,
    Move,
    arrived,
    button,
    link,
    shown,
    stop,
    text_of,
    told,
    told_exactly,
    write,
)
from environments.webarena.sites.forum_data import MEMBER, PASSWORD

forum = Catalogue("reddit")
_COUNTED = "SELECT s.*, (SELECT count(*) FROM comments WHERE submission = s.id) AS comments FROM submissions s"


def _open(title: str) -> list[Move]:
    return [write("Search submissions", title, enter=True), link(title)]


def _enter(name: str) -> list[Move]:
    return [link("Forums"), link(name)]


@forum('Who wrote the submission "{{title}}"?')
def _author(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM submissions WHERE author != ?", MEMBER):
        yield {"title": row["title"]}, told_exactly(row["author"]), [*_open(row["title"]), stop(row["author"])]


@forum('How many comments does the submission "{{title}}" have?')
def _comments(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(_COUNTED):
        yield {"title": row["title"]}, told(str(row["comments"])), [*_open(row["title"]), stop(str(row["comments"]))]


@forum("What is the title of the submission with the highest score in the forum {{forum}}?")
def _best(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM forums"):
        title = facts.one("SELECT title FROM submissions WHERE forum = ? ORDER BY score DESC", row["name"])
        yield {"forum": row["name"]}, told(title), [*_enter(row["name"]), link("Top"), stop(title)]


@forum("Where does the member {{member}} say that they joined from?")
def _joined(facts: Facts) -> Iterable[Instance]:
    members = (
        "SELECT DISTINCT m.*, s.title FROM members m JOIN submissions s ON s.author = m.username "
        "WHERE bio LIKE '%Joined from%' GROUP BY m.username"
    )
    for row in facts.some(members):
        place = row["bio"].partition("Joined from ")[2].rstrip(".")
        yield {"member": row["username"]}, told(place), [*_open(row["title"]), link(row["username"]), stop(place)]


@forum("Show me the submissions in {{forum}} with the highest scores first")
def _top(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM forums"):
        yield {"forum": row["name"]}, arrived(f"__REDDIT__/f/{row['name']}?sort=top"), [*_enter(row["name"]), link("Top"), stop()]


@forum("Open the submission in {{forum}} that has the most comments")
def _most_commented(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM forums"):
        best = facts.db.execute(f"{_COUNTED} WHERE forum = ? ORDER BY comments DESC, id DESC", (row["name"],)).fetchall()
        if best[0]["comments"] == best[1]["comments"]:
            continue
        page = f"__REDDIT__/f/{row['name']}/{best[0]['id']}/"
        yield {"forum": row["name"]}, arrived(page), [*_enter(row["name"]), link("Most commented"), link(best[0]["title"]), stop()]


@forum('Go to the page of the member who wrote "{{title}}"')
def _member(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM submissions WHERE author != ?", MEMBER):
        yield {"title": row["title"]}, arrived(f"__REDDIT__/user/{row['author']}"), [*_open(row["title"]), link(row["author"]), stop()]


@forum('Write a submission in the forum {{forum}} with the title "{{title}}" and the text "{{body}}"')
def _submit(facts: Facts) -> Iterable[Instance]:
    titles = (
        "A question from a beginner",
        "Meeting on Sunday?",
        "My first attempt",
        "A book worth reading",
        "Who can lend me one?",
        "What I learned",
    )
    for row, title in zip(facts.some("SELECT * FROM forums"), titles, strict=False):
        body = f"I hope that somebody in {row['name']} has an idea. Thanks for reading."
        moves = [link("Write a submission"), write("Title", title), write("Text", body), button("Send submission")]
        check = shown(("func:reddit_get_post_url('__last_url__')", text_of(".submission__inner"), [title, body]))
        check |= {"eval_types": ["url_match", "program_html"], "reference_url": f"__REDDIT__/f/{row['name']}", "url_note": "GOLD in PRED"}
        yield {"forum": row["name"], "title": title, "body": body}, check, [*_enter(row["name"]), *moves, stop()]


@forum('Comment "{{comment}}" on the submission "{{title}}"')
def _comment(facts: Facts) -> Iterable[Instance]:
    words = ("Well said", "I will try that tomorrow", "This saved my week", "I am not so sure", "More pictures please", "Count me in")
    for row, comment in zip(facts.some("SELECT * FROM submissions"), words, strict=False):
        check = shown((f"__REDDIT__/f/{row['forum']}/{row['id']}/", text_of("#comments"), [comment, MEMBER]))
        moves = [*_open(row["title"]), write("Your comment", comment), button("Send comment"), stop()]
        yield {"comment": comment, "title": row["title"]}, check, moves


@forum("Subscribe me to the forum {{forum}}")
def _subscribe(facts: Facts) -> Iterable[Instance]:
    unknown = "SELECT * FROM forums WHERE name NOT IN (SELECT forum FROM subscriptions WHERE member = ?)"
    for row in facts.some(unknown, MEMBER):
        check = shown((f"__REDDIT__/user/{MEMBER}", text_of("#forums"), [row["name"]]))
        yield {"forum": row["name"]}, check, [*_enter(row["name"]), button("Subscribe"), stop()]


@forum('Upvote the submission "{{title}}"')
def _upvote(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM submissions"):
        check = shown((f"__REDDIT__/f/{row['forum']}/{row['id']}/", text_of(".submission__inner"), [f"{row['score'] + 1} points"]))
        yield {"title": row["title"]}, check, [*_open(row["title"]), button("Upvote"), stop()]


@forum('Change my biography to "{{text}}"')
def _biography(facts: Facts) -> Iterable[Instance]:
    for text in (
        "Bakes on Sundays",
        "Owner of two bicycles",
        "Learning to listen",
        "Looks at stars",
        "Still new here",
        "On holiday until May",
    ):
        check = shown((f"__REDDIT__/user/{MEMBER}", text_of(".user-bio"), [text]))
        yield {"text": text}, check, [link("My page"), write("My biography", text), button("Save biography"), stop()]


@forum('Create a forum called "{{name}}" with the description "{{description}}"')
def _create(facts: Facts) -> Iterable[Instance]:
    for name, description in (
        ("beekeeping", "Hives and honey"), ("sailing", "Wind and ropes"), ("knitting", "Wool and needles"), ("chess", "Sixty-four squares"),
        ("birds", "What sings outside"), ("maps", "Old and new"),
    ):  # fmt: skip
        check = shown((f"__REDDIT__/f/{name}", "document.querySelector('main').outerText", [name, description]))
        moves = [link("Create a forum"), write("Forum name", name), write("Description", description), button("Create forum"), stop()]
        yield {"name": name, "description": description}, check, moves


@forum('Change the text of my submission "{{title}}" to "{{text}}"')
def _edit(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM submissions WHERE author = ?", MEMBER):
        text = facts.random.choice(("Solved, thank you all!", "This is no longer needed.", "See the comments for the answer."))
        check = shown((f"__REDDIT__/f/{row['forum']}/{row['id']}/", text_of(".submission__inner"), [row["title"], text]))
        yield (
            {"title": row["title"], "text": text},
            check,
            [*_open(row["title"]), link("Edit"), write("Text", text), button("Send submission"), stop()],
        )


@forum(f"Sign in as {MEMBER} with the password {PASSWORD} and open the forum {{{{forum}}}}", login=False)
def _sign_in(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM forums"):
        moves = [
            link("Sign in"),
            write("User name", MEMBER),
            write("Password", PASSWORD),
            button("Sign in now"),
            *_enter(row["name"]),
            stop(),
        ]
        check = shown(("last", text_of("header"), [f"Signed in as {MEMBER}"]))
        check |= {"eval_types": ["url_match", "program_html"], "reference_url": f"__REDDIT__/f/{row['name']}", "url_note": "GOLD in PRED"}
        yield {"forum": row["name"]}, check, moves
