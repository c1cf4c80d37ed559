"""The repository host: projects, files, commits, issues, merge requests, members and stars."""

from __future__ import annotations

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.responses import Response

from environments.webarena.sites.pages import Site, Visit, slug
from environments.webarena.sites.people import TODAY
from environments.webarena.sites.repositories_data import LABELS, ROLES


class ProjectConvertor(StringConvertor):
    """A project in a path: OWNER/NAME."""

    regex = "[^/]+/[^/]+"


register_url_convertor("project", ProjectConvertor())
site = Site("repositories", LABELS=LABELS, ROLES=ROLES)
site.add_sign_in("users")
site.pages({"/": "home.html", "/projects/new": "new_project.html"}, private=True)
site.pages(
    {
        "/explore": "projects.html",
        "/people": "people.html",
        "/users/{username}": "user.html",
        "/{project:project}": "project.html",
        "/{project:project}/edit": "settings.html",
        "/{project:project}/-/blob/{file}": "file.html",
        "/{project:project}/-/commits": "commits.html",
        "/{project:project}/-/issues": "issues.html",
        "/{project:project}/-/issues/new": "new_issue.html",
        "/{project:project}/-/issues/{number:row}": "issue.html",
        "/{project:project}/-/merge_requests": "merge_requests.html",
        "/{project:project}/-/project_members": "members.html",
    }
)


@site.post("/projects/new")
def _create_project(visit: Visit) -> Response:
    path = f"{visit.user}/{slug(visit.given['name'])}"
    is_new = visit.row("SELECT 1 FROM projects WHERE path = :path", path=path) is None
    visibility = visit.given["visibility"]
    if not visit.given["name"] or visibility not in ("Public", "Private") or not is_new:
        visit.notice("A project needs a new name.")
        return visit.go("/projects/new")
    visit.run(
        "INSERT INTO projects VALUES (:path, :user, :description, '', '', :visibility, 0)",
        path=path,
    )
    visit.run("INSERT INTO project_members VALUES (:path, :user, 'Owner')", path=path)
    return visit.go(f"/{path}")


@site.post("/-/status")
def _set_status(visit: Visit) -> Response:
    visit.run("UPDATE users SET status = :status WHERE username = :user")
    return visit.go(f"/users/{visit.user}")


@site.post("/users/{username}/follow")
def _follow(visit: Visit) -> Response:
    old = "DELETE FROM follows WHERE username = :user AND followed = :username RETURNING followed"
    if visit.row(old) is None:
        visit.run(
            "INSERT INTO follows SELECT :user, username FROM users WHERE username = :username"
        )
    return visit.go(f"/users/{visit.given['username']}")


def _project(visit: Visit) -> str:
    """Return the path of the visited project."""
    return str(visit.one("SELECT path FROM projects WHERE path = :project")["path"])


def _is_mine(visit: Visit) -> bool:
    mine = "SELECT 1 FROM projects WHERE path = :project AND owner = :user"
    return visit.row(mine) is not None


@site.post("/{project:project}/star")
def _star(visit: Visit) -> Response:
    path = _project(visit)
    where = "username = :user AND project = :project"
    if visit.row(f"DELETE FROM starred WHERE {where} RETURNING project") is None:
        visit.run("INSERT INTO starred VALUES (:user, :project)")
    return visit.go(f"/{path}")


@site.post("/{project:project}/edit")
def _change_settings(visit: Visit) -> Response:
    path = _project(visit)
    if not _is_mine(visit) or visit.given["visibility"] not in ("Public", "Private"):
        visit.notice("Only the owner of a project can change it.")
    else:
        values = "description = :description, visibility = :visibility"
        visit.run(f"UPDATE projects SET {values} WHERE path = :project")
        visit.notice("The settings are saved.")
    return visit.go(f"/{path}/edit")


@site.post("/{project:project}/-/issues/new")
def _create_issue(visit: Visit) -> Response:
    path, label = _project(visit), visit.given.get("label", "question")
    if not visit.given["title"] or label not in LABELS:
        visit.notice("An issue needs a title.")
        return visit.go(f"/{path}/-/issues/new")
    [new] = visit.rows(
        "INSERT INTO issues SELECT :project, coalesce(max(number), 0) + 1, :title, :body, :user, "
        "'', :label, 'open', :day FROM issues WHERE project = :project RETURNING number",
        label=label,
        day=TODAY.isoformat(),
    )
    return visit.go(f"/{path}/-/issues/{new['number']}")


@site.post("/{project:project}/-/issues/{number:row}")
def _change_issue(visit: Visit) -> Response:
    path, change, text = _project(visit), visit.given["change"], visit.given["text"]
    issue = "project = :project AND number = :number"
    if change == "state":
        visit.run(f"UPDATE issues SET state = iif(state = 'open', 'closed', 'open') WHERE {issue}")
    elif change == "assignee":
        if text and visit.row("SELECT 1 FROM users WHERE username = :text") is None:
            visit.notice(f"There is no user {text}.")
        else:
            visit.run(f"UPDATE issues SET assignee = :text WHERE {issue}")
    elif text:
        note = "INSERT INTO notes VALUES (:project, :number, :user, :text, :day)"
        visit.run(note, day=TODAY.isoformat())
    return visit.go(f"/{path}/-/issues/{visit.given['number']}")


@site.post("/{project:project}/-/project_members")
def _invite(visit: Visit) -> Response:
    path = _project(visit)
    if not _is_mine(visit):
        visit.notice("Only the owner of a project can invite people.")
    elif visit.given["role"] not in ROLES or not visit.row(
        "SELECT 1 FROM users WHERE username = :username"
    ):
        visit.notice("An invitation needs the name of a user and a role.")
    else:
        visit.run("INSERT OR REPLACE INTO project_members VALUES (:project, :username, :role)")
    return visit.go(f"/{path}/-/project_members")
