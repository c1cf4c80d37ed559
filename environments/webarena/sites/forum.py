"""The forum: submissions, comments, votes, subscriptions and member pages."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response
from starlette.routing import Route

from environments.webarena.sites.pages import Visit, contains, login_routes, page, slug
from environments.webarena.sites.people import TODAY

SITE = "forum"
_SORTS = {"new": "id DESC", "top": "score DESC", "commented": "comments DESC, id DESC"}
_SHOWN = (
    "SELECT s.id, s.forum, s.author, s.title, s.slug, s.body, s.day, "
    "s.score + coalesce((SELECT sum(value) FROM votes WHERE submission = s.id), 0) AS score, "
    "(SELECT count(*) FROM comments WHERE submission = s.id) AS comments FROM submissions s"
)


def _path(submission: int, visit: Visit) -> str:
    row = visit.row("SELECT forum, slug FROM submissions WHERE id = ?", submission)
    return f"/f/{row['forum']}/{submission}/{row['slug']}" if row else "/"


def _listing(visit: Visit, title: str, where: str, *values: object, forum: sqlite3.Row | None = None, subscribed: bool = False) -> Response:
    sort = visit.query.get("sort", "new")
    submissions = visit.rows(f"{_SHOWN} {where} ORDER BY {_SORTS.get(sort, _SORTS['new'])} LIMIT 25", *values)
    return visit.render("forum/listing.html", title=title, submissions=submissions, forum=forum, subscribed=subscribed)


def _home(visit: Visit) -> Response:
    return _listing(visit, "All submissions", "")


def _search(visit: Visit) -> Response:
    wanted = visit.query.get("q", "").strip()
    return _listing(visit, f"Submissions about '{wanted}'", "WHERE title LIKE ? ESCAPE '!'", contains(wanted))


def _forums(visit: Visit) -> Response:
    forums = visit.rows("SELECT f.*, (SELECT count(*) FROM submissions WHERE forum = f.name) AS submissions FROM forums f ORDER BY name")
    return visit.render("forum/forums.html", forums=forums)


def _forum(visit: Visit) -> Response:
    forum = visit.row("SELECT * FROM forums WHERE name = ?", visit.part["forum"])
    if forum is None:
        return visit.missing()
    subscribed = visit.row("SELECT 1 FROM subscriptions WHERE member = ? AND forum = ?", visit.user, forum["name"]) is not None
    return _listing(visit, forum["name"], "WHERE forum = ?", forum["name"], forum=forum, subscribed=subscribed)


def _subscribe(visit: Visit) -> Response:
    forum = visit.part["forum"]
    if visit.row("DELETE FROM subscriptions WHERE member = ? AND forum = ? RETURNING forum", visit.user, forum) is None:
        visit.run("INSERT INTO subscriptions SELECT ?, name FROM forums WHERE name = ?", visit.user, forum)
    return visit.go(f"/f/{forum}")


def _submission(visit: Visit) -> Response:
    row = visit.row(f"{_SHOWN} WHERE id = ? AND forum = ?", visit.part["submission"], visit.part["forum"])
    if row is None:
        return visit.missing()
    comments = visit.rows("SELECT * FROM comments WHERE submission = ? ORDER BY id", row["id"])
    return visit.render("forum/submission.html", submission=row, comments=comments)


def _comment(visit: Visit) -> Response:
    submission, body = visit.part["submission"], visit.form.get("body")
    if body:
        add = "INSERT INTO comments (submission, author, body, day) SELECT id, ?, ?, ? FROM submissions WHERE id = ?"
        visit.run(add, visit.user, body, TODAY.isoformat(), submission)
    else:
        visit.notice("A comment needs a text.")
    return visit.go(_path(submission, visit))


def _vote(visit: Visit) -> Response:
    submission = visit.part["submission"]
    value = 1 if visit.form.get("vote") == "up" else -1
    if (
        visit.row("DELETE FROM votes WHERE member = ? AND submission = ? AND value = ? RETURNING value", visit.user, submission, value)
        is None
    ):
        visit.run("INSERT OR REPLACE INTO votes SELECT ?, id, ? FROM submissions WHERE id = ?", visit.user, value, submission)
    return visit.go(_path(submission, visit))


def _write(visit: Visit) -> Response:
    return visit.render(
        "forum/write.html", forum=visit.part["forum"], submission={"title": "", "body": ""}, action=f"/submit/{visit.part['forum']}"
    )


def _submit(visit: Visit) -> Response:
    forum = visit.row("SELECT name FROM forums WHERE name = ?", visit.part["forum"])
    title, body = visit.form.get("title"), visit.form.get("body", "")
    if forum is None:
        return visit.missing()
    if not title:
        visit.notice("A submission needs a title.")
        return visit.go(f"/submit/{forum['name']}")
    number = visit.run(
        "INSERT INTO submissions (forum, author, title, slug, body, day, score) VALUES (?, ?, ?, ?, ?, ?, 1)",
        forum["name"], visit.user, title, slug(title), body, TODAY.isoformat(),
    )  # fmt: skip
    return visit.go(_path(number, visit))


def _edit(visit: Visit) -> Response:
    row = visit.row("SELECT * FROM submissions WHERE id = ? AND author = ?", visit.part["submission"], visit.user)
    if row is None:
        return visit.missing()
    return visit.render("forum/write.html", forum=row["forum"], submission=row, action=f"/edit/{row['id']}")


def _save(visit: Visit) -> Response:
    change = "UPDATE submissions SET title = ?, body = ? WHERE id = ? AND author = ?"
    title = visit.form.get("title")
    if title:
        visit.run(change, title, visit.form.get("body", ""), visit.part["submission"], visit.user)
    else:
        visit.notice("A submission needs a title.")
    return visit.go(_path(visit.part["submission"], visit))


def _delete(visit: Visit) -> Response:
    path = "/"
    gone = visit.row("DELETE FROM submissions WHERE id = ? AND author = ? RETURNING forum", visit.part["submission"], visit.user)
    if gone is not None:
        visit.run("DELETE FROM comments WHERE submission = ?", visit.part["submission"])
        visit.notice("The submission is deleted.")
        path = f"/f/{gone['forum']}"
    return visit.go(path)


def _new_forum(visit: Visit) -> Response:
    return visit.render("forum/new_forum.html")


def _create_forum(visit: Visit) -> Response:
    name, description = slug(visit.form.get("name", "")), visit.form.get("description")
    if not visit.form.get("name") or not description or visit.row("SELECT 1 FROM forums WHERE name = ?", name):
        visit.notice("A forum needs a new name and a description.")
        return visit.go("/create_forum")
    visit.run("INSERT INTO forums VALUES (?, ?)", name, description)
    return visit.go(f"/f/{name}")


def _member(visit: Visit) -> Response:
    member = visit.row("SELECT * FROM members WHERE username = ?", visit.part["name"])
    if member is None:
        return visit.missing()
    submissions = visit.rows(f"{_SHOWN} WHERE author = ? ORDER BY id DESC", member["username"])
    forums = visit.rows("SELECT forum FROM subscriptions WHERE member = ? ORDER BY forum", member["username"])
    return visit.render("forum/member.html", member=member, submissions=submissions, forums=forums)


def _change_bio(visit: Visit) -> Response:
    visit.run("UPDATE members SET bio = ? WHERE username = ?", visit.form.get("bio", ""), visit.user)
    visit.notice("Your biography is saved.")
    return visit.go(f"/user/{visit.user}")


def routes() -> list[Route]:
    """Return the forum's routes."""
    return [
        page(SITE, "/", _home),
        page(SITE, "/search", _search),
        page(SITE, "/forums", _forums),
        page(SITE, "/create_forum", _new_forum, private=True),
        page(SITE, "/create_forum", _create_forum, post=True, private=True),
        page(SITE, "/f/{forum}", _forum),
        page(SITE, "/f/{forum}/subscribe", _subscribe, post=True, private=True),
        page(SITE, "/f/{forum}/{submission:int}/", _submission),
        page(SITE, "/f/{forum}/{submission:int}/{slug}", _submission),
        page(SITE, "/comment/{submission:int}", _comment, post=True, private=True),
        page(SITE, "/vote/{submission:int}", _vote, post=True, private=True),
        page(SITE, "/submit/{forum}", _write, private=True),
        page(SITE, "/submit/{forum}", _submit, post=True, private=True),
        page(SITE, "/edit/{submission:int}", _edit, private=True),
        page(SITE, "/edit/{submission:int}", _save, post=True, private=True),
        page(SITE, "/delete/{submission:int}", _delete, post=True, private=True),
        page(SITE, "/user/{name}", _member),
        page(SITE, "/biography", _change_bio, post=True, private=True),
        *login_routes(SITE, "members"),
    ]
