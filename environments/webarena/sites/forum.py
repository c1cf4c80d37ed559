"""The forum: submissions, comments, votes, subscriptions and member pages."""

from __future__ import annotations

from starlette.responses import Response

from environments.webarena.sites.pages import Site, Visit, slug
from environments.webarena.sites.people import TODAY

site = Site("forum")
site.add_sign_in("members")
site.pages(
    {
        "/": "listing.html",
        "/search": "search.html",
        "/forums": "forums.html",
        "/f/{forum}": "forum.html",
        "/f/{forum}/{submission:row}/": "submission.html",
        "/f/{forum}/{submission:row}/{slug}": "submission.html",
        "/user/{name}": "member.html",
    }
)
site.pages(
    {
        "/create_forum": "new_forum.html",
        "/submit/{forum}": "write.html",
        "/edit/{submission:row}": "write.html",
    },
    private=True,
)


def _show(submission: int, visit: Visit) -> Response:
    """Redirect to a submission."""
    row = visit.row("SELECT forum, slug FROM submissions WHERE id = :id", id=submission)
    return visit.go(f"/f/{row['forum']}/{submission}/{row['slug']}" if row else "/")


@site.post("/create_forum")
def _create_forum(visit: Visit) -> Response:
    name = slug(visit.given["name"])
    taken = visit.row("SELECT 1 FROM forums WHERE name = :name", name=name)
    if not visit.given["name"] or not visit.given["description"] or taken:
        visit.notice("A forum needs a new name and a description.")
        return visit.go("/create_forum")
    visit.run("INSERT INTO forums VALUES (:name, :description)", name=name)
    return visit.go(f"/f/{name}")


@site.post("/f/{forum}/subscribe")
def _subscribe(visit: Visit) -> Response:
    old = "DELETE FROM subscriptions WHERE member = :user AND forum = :forum RETURNING forum"
    if visit.row(old) is None:
        visit.run("INSERT INTO subscriptions SELECT :user, name FROM forums WHERE name = :forum")
    return visit.go(f"/f/{visit.given['forum']}")


@site.post("/comment/{submission:row}")
def _comment(visit: Visit) -> Response:
    if visit.given["body"]:
        visit.run(
            "INSERT INTO comments (submission, author, body, day) SELECT id, :user, :body, :day "
            "FROM submissions WHERE id = :submission",
            day=TODAY.isoformat(),
        )
    else:
        visit.notice("A comment needs a text.")
    return _show(visit.given["submission"], visit)


@site.post("/vote/{submission:row}")
def _vote(visit: Visit) -> Response:
    value = 1 if visit.given["vote"] == "up" else -1
    where = "member = :user AND submission = :submission AND value = :value"
    if visit.row(f"DELETE FROM votes WHERE {where} RETURNING value", value=value) is None:
        visit.run(
            "INSERT OR REPLACE INTO votes SELECT :user, id, :value FROM submissions WHERE id = "
            ":submission",
            value=value,
        )
    return _show(visit.given["submission"], visit)


@site.post("/submit/{forum}")
def _submit(visit: Visit) -> Response:
    forum, title = visit.given["forum"], visit.given["title"]
    if visit.row("SELECT name FROM forums WHERE name = :forum") is None:
        return visit.missing()
    if not title:
        visit.notice("A submission needs a title.")
        return visit.go(f"/submit/{forum}")
    number = visit.run(
        "INSERT INTO submissions (forum, author, title, slug, body, day, score) VALUES (:forum, "
        ":user, :title, :slug, :body, :day, 1)",
        slug=slug(title),
        day=TODAY.isoformat(),
    )
    return _show(number, visit)


@site.post("/edit/{submission:row}")
def _save(visit: Visit) -> Response:
    if visit.given["title"]:
        visit.run(
            "UPDATE submissions SET title = :title, body = :body WHERE id = :submission AND author "
            "= :user"
        )
    else:
        visit.notice("A submission needs a title.")
    return _show(visit.given["submission"], visit)


@site.post("/delete/{submission:row}")
def _delete(visit: Visit) -> Response:
    where = "id = :submission AND author = :user"
    gone = visit.row(f"DELETE FROM submissions WHERE {where} RETURNING forum")
    if gone is None:
        return visit.go("/")
    visit.run("DELETE FROM comments WHERE submission = :submission")
    visit.notice("The submission is deleted.")
    return visit.go(f"/f/{gone['forum']}")


@site.post("/biography")
def _change_biography(visit: Visit) -> Response:
    visit.run("UPDATE members SET bio = :bio WHERE username = :user")
    visit.notice("Your biography is saved.")
    return visit.go(f"/user/{visit.user}")
