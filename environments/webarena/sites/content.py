"""The content manager of a newspaper: /admin for its staff, and public pages with its articles."""

from __future__ import annotations

from starlette.responses import Response

from environments.webarena.sites.content_data import COMMENT_STATES, SECTIONS, STAFF_ROLES, STATUSES
from environments.webarena.sites.pages import Site, Visit, slug, whole
from environments.webarena.sites.people import TODAY

site = Site(
    "content",
    SECTIONS=SECTIONS,
    STATUSES=STATUSES,
    COMMENT_STATES=COMMENT_STATES,
    STAFF_ROLES=STAFF_ROLES,
)
site.add_sign_in("staff", "/admin")
site.pages({"/": "paper.html", "/articles/{slug}": "article.html"})
site.pages(
    {
        "/admin": "dashboard.html",
        "/admin/articles": "articles.html",
        "/admin/articles/new": "edit.html",
        "/admin/articles/{article:row}/edit": "edit.html",
        "/admin/comments": "comments.html",
        "/admin/settings": "settings.html",
        "/admin/staff": "staff.html",
    },
    private=True,
)


@site.post("/admin/articles/new")
def _create(visit: Visit) -> Response:
    if not _is_complete(visit):
        return visit.go("/admin/articles/new")
    number = visit.run(
        "INSERT INTO articles (slug, title, section, author, status, body, day, views) "
        "SELECT :slug, :title, :section, (SELECT name FROM staff WHERE username = :user), "
        ":status, :body, :day, 0",
        slug=slug(visit.given["title"]),
        day=TODAY.isoformat(),
    )
    visit.notice("The article is saved.")
    return visit.go(f"/admin/articles/{number}/edit")


@site.post("/admin/articles/{article:row}/edit")
def _save(visit: Visit) -> Response:
    if _is_complete(visit):
        visit.run(
            "UPDATE articles SET title = :title, section = :section, status = :status, body = "
            ":body WHERE id = :article"
        )
        visit.notice("The article is saved.")
    return visit.go(f"/admin/articles/{visit.given['article']}/edit")


def _is_complete(visit: Visit) -> bool:
    given = visit.given
    if given["title"] and given["section"] in SECTIONS and given["status"] in STATUSES:
        return True
    visit.notice("An article needs a title, a section and a status.")
    return False


@site.post("/admin/articles/{article:row}/delete")
def _delete(visit: Visit) -> Response:
    visit.run("DELETE FROM articles WHERE id = :article")
    visit.run("DELETE FROM article_comments WHERE article = :article")
    visit.notice("The article is deleted.")
    return visit.go("/admin/articles")


@site.post("/admin/comments/{comment:row}")
def _review(visit: Visit) -> Response:
    if visit.given["status"] in COMMENT_STATES:
        visit.run("UPDATE article_comments SET status = :status WHERE id = :comment")
        visit.notice(f"The comment is now {visit.given['status']}.")
    return visit.go("/admin/comments")


@site.post("/admin/settings")
def _save_settings(visit: Visit) -> Response:
    if not visit.given["title"] or whole(visit.given["per_page"], 1, 100) is None:
        visit.notice("The paper needs a title, and 1 to 100 articles on a page.")
    else:
        for name in ("title", "tagline", "contact", "per_page"):
            visit.run(f"UPDATE settings SET value = :{name} WHERE name = '{name}'")
        visit.notice("The settings are saved.")
    return visit.go("/admin/settings")


@site.post("/admin/staff")
def _hire(visit: Visit) -> Response:
    given, username = visit.given, slug(visit.given["username"])
    taken = visit.row("SELECT 1 FROM staff WHERE username = :username", username=username)
    if not given["username"] or not given["name"] or given["role"] not in STAFF_ROLES or taken:
        visit.notice("A new member of staff needs a new account, a name and a role.")
    else:
        visit.run("INSERT INTO staff VALUES (:username, '', :name, :role)", username=username)
        visit.notice(f"{given['name']} is added.")
    return visit.go("/admin/staff")
