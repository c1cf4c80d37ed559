"""The repository host: projects, files, commits, issues, merge requests, members and stars."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from starlette.responses import Response
from starlette.routing import Route

from environments.webarena.sites.pages import Handler, Visit, contains, login_routes, page, slug
from environments.webarena.sites.people import TODAY
from environments.webarena.sites.repositories_data import LABELS, ROLES

SITE = "repositories"
_ShowProject = Callable[[Visit, sqlite3.Row], Response]
_PROJECTS = "SELECT p.*, p.stars + (SELECT count(*) FROM starred WHERE project = p.path) AS all_stars FROM projects p"


def _home(visit: Visit) -> Response:
    where = "WHERE path IN (SELECT project FROM project_members WHERE username = ?) ORDER BY path"
    return visit.render("repositories/projects.html", title="Your projects", projects=visit.rows(f"{_PROJECTS} {where}", visit.user))


def _explore(visit: Visit) -> Response:
    wanted = visit.query.get("q", "").strip()
    order = "all_stars DESC" if visit.query.get("sort") == "stars" else "path"
    where = f"WHERE path LIKE ? ESCAPE '!' OR description LIKE ? ESCAPE '!' ORDER BY {order}"
    projects = visit.rows(f"{_PROJECTS} {where}", contains(wanted), contains(wanted))
    return visit.render("repositories/projects.html", title=f"Projects about '{wanted}'" if wanted else "All projects", projects=projects)


def _in_project(path: str, show: _ShowProject, *, post: bool = False) -> Route:
    """Create a route below /OWNER/NAME. `show` also receives the project."""

    def handler(visit: Visit) -> Response:
        project = visit.row(f"{_PROJECTS} WHERE path = ?", f"{visit.part['owner']}/{visit.part['name']}")
        return visit.missing() if project is None else show(visit, project)

    return page(SITE, "/{owner}/{name}" + path, handler, post=post, private=post)


def _project(visit: Visit, project: sqlite3.Row) -> Response:
    path = project["path"]
    starred = visit.row("SELECT 1 FROM starred WHERE username = ? AND project = ?", visit.user, path) is not None
    readme = visit.row("SELECT content FROM files WHERE project = ? AND name = 'README.md'", path)
    files = visit.rows("SELECT name FROM files WHERE project = ? ORDER BY name", path)
    commits = visit.row("SELECT count(*) AS n FROM commits WHERE project = ?", path)
    assert commits is not None
    return visit.render(
        "repositories/project.html",
        project=project,
        starred=starred,
        files=files,
        commits=commits["n"],
        readme=readme["content"] if readme else "",
    )


def _file(visit: Visit, project: sqlite3.Row) -> Response:
    file = visit.row("SELECT * FROM files WHERE project = ? AND name = ?", project["path"], visit.part["file"])
    return visit.missing() if file is None else visit.render("repositories/file.html", project=project, file=file)


def _commits(visit: Visit, project: sqlite3.Row) -> Response:
    commits = visit.rows("SELECT * FROM commits WHERE project = ? ORDER BY day DESC", project["path"])
    return visit.render("repositories/commits.html", project=project, commits=commits)


def _issues(visit: Visit, project: sqlite3.Row) -> Response:
    state, label = visit.query.get("state", "open"), visit.query.get("label", "")
    where = "project = ? AND (state = ? OR ? = 'all') AND (label = ? OR ? = '')"
    issues = visit.rows(f"SELECT * FROM issues WHERE {where} ORDER BY number DESC", project["path"], state, state, label, label)
    return visit.render("repositories/issues.html", project=project, issues=issues, state=state, label=label, labels=LABELS)


def _new_issue(visit: Visit, project: sqlite3.Row) -> Response:
    return visit.render("repositories/new_issue.html", project=project, labels=LABELS)


def _create_issue(visit: Visit, project: sqlite3.Row) -> Response:
    title, label = visit.form.get("title"), visit.form.get("label", "question")
    if not title or label not in LABELS:
        visit.notice("An issue needs a title.")
        return visit.go(f"/{project['path']}/-/issues/new")
    count = visit.row("SELECT coalesce(max(number), 0) + 1 AS n FROM issues WHERE project = ?", project["path"])
    assert count is not None
    visit.run(
        "INSERT INTO issues VALUES (?, ?, ?, ?, ?, '', ?, 'open', ?)",
        project["path"], count["n"], title, visit.form.get("body", ""), visit.user, label, TODAY.isoformat(),
    )  # fmt: skip
    return visit.go(f"/{project['path']}/-/issues/{count['n']}")


def _issue(visit: Visit, project: sqlite3.Row) -> Response:
    issue = visit.row("SELECT * FROM issues WHERE project = ? AND number = ?", project["path"], visit.part["number"])
    if issue is None:
        return visit.missing()
    notes = visit.rows("SELECT * FROM notes WHERE project = ? AND issue = ?", project["path"], issue["number"])
    return visit.render("repositories/issue.html", project=project, issue=issue, notes=notes)


def _change_issue(visit: Visit, project: sqlite3.Row) -> Response:
    path, number = project["path"], visit.part["number"]
    change, text = visit.form.get("change"), visit.form.get("text", "")
    if change == "state":
        visit.run("UPDATE issues SET state = iif(state = 'open', 'closed', 'open') WHERE project = ? AND number = ?", path, number)
    elif change == "assignee":
        if text and visit.row("SELECT 1 FROM users WHERE username = ?", text) is None:
            visit.notice(f"There is no user {text}.")
        else:
            visit.run("UPDATE issues SET assignee = ? WHERE project = ? AND number = ?", text, path, number)
    elif text:
        visit.run("INSERT INTO notes VALUES (?, ?, ?, ?, ?)", path, number, visit.user, text, TODAY.isoformat())
    return visit.go(f"/{path}/-/issues/{number}")


def _merge_requests(visit: Visit, project: sqlite3.Row) -> Response:
    state = visit.query.get("state", "all")
    merges = visit.rows(
        "SELECT * FROM merge_requests WHERE project = ? AND (state = ? OR ? = 'all') ORDER BY number", project["path"], state, state
    )
    return visit.render("repositories/merge_requests.html", project=project, merges=merges)


def _members(visit: Visit, project: sqlite3.Row) -> Response:
    members = visit.rows(
        "SELECT m.*, u.name FROM project_members m JOIN users u USING (username) WHERE project = ? ORDER BY username", project["path"]
    )
    return visit.render("repositories/members.html", project=project, members=members, roles=ROLES)


def _invite(visit: Visit, project: sqlite3.Row) -> Response:
    name, role = visit.form.get("username", ""), visit.form.get("role")
    if project["owner"] != visit.user:
        visit.notice("Only the owner of a project can invite people.")
    elif role not in ROLES or visit.row("SELECT 1 FROM users WHERE username = ?", name) is None:
        visit.notice("An invitation needs the name of a user and a role.")
    else:
        visit.run("INSERT OR REPLACE INTO project_members VALUES (?, ?, ?)", project["path"], name, role)
    return visit.go(f"/{project['path']}/-/project_members")


def _settings(visit: Visit, project: sqlite3.Row) -> Response:
    return visit.render("repositories/settings.html", project=project)


def _change_settings(visit: Visit, project: sqlite3.Row) -> Response:
    visibility = visit.form.get("visibility")
    if project["owner"] != visit.user or visibility not in ("Public", "Private"):
        visit.notice("Only the owner of a project can change it.")
    else:
        change = "UPDATE projects SET description = ?, visibility = ? WHERE path = ?"
        visit.run(change, visit.form.get("description", ""), visibility, project["path"])
        visit.notice("The settings are saved.")
    return visit.go(f"/{project['path']}/edit")


def _star(visit: Visit, project: sqlite3.Row) -> Response:
    if visit.row("DELETE FROM starred WHERE username = ? AND project = ? RETURNING project", visit.user, project["path"]) is None:
        visit.run("INSERT INTO starred VALUES (?, ?)", visit.user, project["path"])
    return visit.go(f"/{project['path']}")


def _new_project(visit: Visit) -> Response:
    return visit.render("repositories/new_project.html")


def _create_project(visit: Visit) -> Response:
    path = f"{visit.user}/{slug(visit.form.get('name', ''))}"
    visibility = visit.form.get("visibility")
    if not visit.form.get("name") or visibility not in ("Public", "Private") or visit.row("SELECT 1 FROM projects WHERE path = ?", path):
        visit.notice("A project needs a new name.")
        return visit.go("/projects/new")
    visit.run("INSERT INTO projects VALUES (?, ?, ?, '', '', ?, 0)", path, visit.user, visit.form.get("description", ""), visibility)
    visit.run("INSERT INTO project_members VALUES (?, ?, 'Owner')", path, visit.user)
    return visit.go(f"/{path}")


def _user(visit: Visit) -> Response:
    user = visit.row("SELECT * FROM users WHERE username = ?", visit.part["username"])
    if user is None:
        return visit.missing()
    name = user["username"]
    following = visit.row("SELECT 1 FROM follows WHERE username = ? AND followed = ?", visit.user, name) is not None
    followed = visit.rows("SELECT followed FROM follows WHERE username = ? ORDER BY followed", name)
    projects = visit.rows(f"{_PROJECTS} WHERE owner = ? ORDER BY path", name)
    starred = visit.rows("SELECT project FROM starred WHERE username = ? ORDER BY project", name)
    return visit.render("repositories/user.html", shown=user, following=following, followed=followed, projects=projects, starred=starred)


def _follow(visit: Visit) -> Response:
    name = visit.part["username"]
    if visit.row("DELETE FROM follows WHERE username = ? AND followed = ? RETURNING followed", visit.user, name) is None:
        visit.run("INSERT INTO follows SELECT ?, username FROM users WHERE username = ?", visit.user, name)
    return visit.go(f"/users/{name}")


def _set_status(visit: Visit) -> Response:
    visit.run("UPDATE users SET status = ? WHERE username = ?", visit.form.get("status", ""), visit.user)
    return visit.go(f"/users/{visit.user}")


def _people(visit: Visit) -> Response:
    return visit.render("repositories/people.html", people=visit.rows("SELECT username, name FROM users ORDER BY name"))


def routes() -> list[Route]:
    """Return the repository host's routes. Fixed paths precede those that begin with an owner."""
    users: list[tuple[str, Handler, bool]] = [("", _user, False), ("/follow", _follow, True)]
    return [
        *login_routes(SITE, "users"),
        page(SITE, "/", _home, private=True),
        page(SITE, "/explore", _explore),
        page(SITE, "/people", _people),
        page(SITE, "/projects/new", _new_project, private=True),
        page(SITE, "/projects/new", _create_project, post=True, private=True),
        page(SITE, "/-/status", _set_status, post=True, private=True),
        *(page(SITE, "/users/{username}" + path, show, post=post, private=post) for path, show, post in users),
        _in_project("", _project),
        _in_project("/star", _star, post=True),
        _in_project("/edit", _settings),
        _in_project("/edit", _change_settings, post=True),
        _in_project("/-/blob/{file}", _file),
        _in_project("/-/commits", _commits),
        _in_project("/-/issues", _issues),
        _in_project("/-/issues/new", _new_issue),
        _in_project("/-/issues/new", _create_issue, post=True),
        _in_project("/-/issues/{number:int}", _issue),
        _in_project("/-/issues/{number:int}", _change_issue, post=True),
        _in_project("/-/merge_requests", _merge_requests),
        _in_project("/-/project_members", _members),
        _in_project("/-/project_members", _invite, post=True),
    ]
