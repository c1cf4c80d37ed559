"""The content manager of a newspaper: /admin for its staff, and public pages with its articles."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from environments.webarena.sites.content_data import SECTIONS, STAFF_ROLES, STATUSES
from environments.webarena.sites.pages import Visit, contains, login_routes, page, slug, whole
from environments.webarena.sites.people import TODAY

SITE = "content"
_COMMENT_STATES = ("pending", "approved", "spam")
_SETTINGS = ("title", "tagline", "contact", "per_page")


def _paper(visit: Visit) -> Response:
    articles = visit.rows("SELECT * FROM articles WHERE status = 'published' ORDER BY id DESC")
    return visit.render("content/paper.html", articles=articles)


def _article(visit: Visit) -> Response:
    article = visit.row("SELECT * FROM articles WHERE slug = ? AND status = 'published'", visit.part["slug"])
    if article is None:
        return visit.missing()
    comments = visit.rows("SELECT * FROM article_comments WHERE article = ? AND status = 'approved' ORDER BY id", article["id"])
    return visit.render("content/article.html", article=article, comments=comments)


def _dashboard(visit: Visit) -> Response:
    counts = visit.rows("SELECT status, count(*) AS n FROM articles GROUP BY status ORDER BY status")
    pending = visit.row("SELECT count(*) AS n FROM article_comments WHERE status = 'pending'")
    popular = visit.rows("SELECT * FROM articles ORDER BY views DESC LIMIT 5")
    assert pending is not None
    return visit.render("content/dashboard.html", counts=counts, pending=pending["n"], popular=popular)


def _articles(visit: Visit) -> Response:
    status, section, wanted = (visit.query.get(name, "") for name in ("status", "section", "q"))
    order = "views DESC" if visit.query.get("sort") == "views" else "id DESC"
    articles = visit.rows(
        f"SELECT * FROM articles WHERE (status = ? OR ? = '') AND (section = ? OR ? = '') AND title LIKE ? ESCAPE '!' ORDER BY {order}",
        status, status, section, section, contains(wanted),
    )  # fmt: skip
    return visit.render("content/articles.html", articles=articles, status=status, section=section, sections=SECTIONS, statuses=STATUSES)


def _write(visit: Visit) -> Response:
    blank = {"id": None, "title": "", "section": "", "status": "draft", "body": ""}
    return visit.render("content/edit.html", article=blank, sections=SECTIONS, statuses=STATUSES)


def _edit(visit: Visit) -> Response:
    article = visit.row("SELECT * FROM articles WHERE id = ?", visit.part["article"])
    return visit.missing() if article is None else visit.render("content/edit.html", article=article, sections=SECTIONS, statuses=STATUSES)


def _save(visit: Visit) -> Response:
    number = visit.part.get("article")
    title, section, status, body = (visit.form.get(name, "") for name in ("title", "section", "status", "body"))
    if not title or section not in SECTIONS or status not in STATUSES:
        visit.notice("An article needs a title, a section and a status.")
        return visit.go(visit.request.url.path)
    if number is None:
        name = visit.row("SELECT name FROM staff WHERE username = ?", visit.user)
        number = visit.run(
            "INSERT INTO articles (slug, title, section, author, status, body, day, views) VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
            slug(title), title, section, name and name["name"], status, body, TODAY.isoformat(),
        )  # fmt: skip
    else:
        visit.run("UPDATE articles SET title = ?, section = ?, status = ?, body = ? WHERE id = ?", title, section, status, body, number)
    visit.notice("The article is saved.")
    return visit.go(f"/admin/articles/{number}/edit")


def _delete(visit: Visit) -> Response:
    visit.run("DELETE FROM articles WHERE id = ?", visit.part["article"])
    visit.run("DELETE FROM article_comments WHERE article = ?", visit.part["article"])
    visit.notice("The article is deleted.")
    return visit.go("/admin/articles")


def _comments(visit: Visit) -> Response:
    status = visit.query.get("status", "pending")
    comments = visit.rows(
        "SELECT c.*, a.title FROM article_comments c JOIN articles a ON a.id = c.article WHERE c.status = ? ORDER BY c.id DESC", status
    )
    return visit.render("content/comments.html", comments=comments, status=status, states=_COMMENT_STATES)


def _judge(visit: Visit) -> Response:
    status = visit.form.get("status")
    if status in _COMMENT_STATES:
        visit.run("UPDATE article_comments SET status = ? WHERE id = ?", status, visit.part["comment"])
        visit.notice(f"The comment is now {status}.")
    return visit.go("/admin/comments")


def _settings(visit: Visit) -> Response:
    values = {row["name"]: row["value"] for row in visit.rows("SELECT * FROM settings")}
    return visit.render("content/settings.html", values=values)


def _save_settings(visit: Visit) -> Response:
    if not visit.form.get("title") or whole(visit.form.get("per_page"), 1, 100) is None:
        visit.notice("The paper needs a title, and 1 to 100 articles on a page.")
    else:
        for name in _SETTINGS:
            visit.run("UPDATE settings SET value = ? WHERE name = ?", visit.form.get(name, ""), name)
        visit.notice("The settings are saved.")
    return visit.go("/admin/settings")


def _staff(visit: Visit) -> Response:
    return visit.render("content/staff.html", staff=visit.rows("SELECT * FROM staff ORDER BY username"), roles=STAFF_ROLES)


def _hire(visit: Visit) -> Response:
    username, name, role = slug(visit.form.get("username", "")), visit.form.get("name"), visit.form.get("role")
    taken = visit.row("SELECT 1 FROM staff WHERE username = ?", username)
    if not visit.form.get("username") or not name or role not in STAFF_ROLES or taken:
        visit.notice("A new member of staff needs a new account, a name and a role.")
    else:
        visit.run("INSERT INTO staff VALUES (?, '', ?, ?)", username, name, role)
        visit.notice(f"{name} is added.")
    return visit.go("/admin/staff")


def routes() -> list[Route]:
    """Return the content manager's routes."""
    return [
        *login_routes(SITE, "staff", "/admin"),
        page(SITE, "/", _paper),
        page(SITE, "/articles/{slug}", _article),
        page(SITE, "/admin", _dashboard, private=True),
        page(SITE, "/admin/articles", _articles, private=True),
        page(SITE, "/admin/articles/new", _write, private=True),
        page(SITE, "/admin/articles/new", _save, post=True, private=True),
        page(SITE, "/admin/articles/{article:int}/edit", _edit, private=True),
        page(SITE, "/admin/articles/{article:int}/edit", _save, post=True, private=True),
        page(SITE, "/admin/articles/{article:int}/delete", _delete, post=True, private=True),
        page(SITE, "/admin/comments", _comments, private=True),
        page(SITE, "/admin/comments/{comment:int}", _judge, post=True, private=True),
        page(SITE, "/admin/settings", _settings, private=True),
        page(SITE, "/admin/settings", _save_settings, post=True, private=True),
        page(SITE, "/admin/staff", _staff, private=True),
        page(SITE, "/admin/staff", _hire, post=True, private=True),
    ]
