"""Intent templates of the repository host."""

from __future__ import annotations

from collections.abc import Iterable

from environments.webarena.intents.intent import (
    Catalogue,
    Facts,
    Instance,
    Move,
    arrived,
    button,
    click,
    link,
    shown,
    stop,
    text_of,
    told,
    told_exactly,
    write,
)
from environments.webarena.sites.repositories_data import LABELS, ROLES, USER

repositories = Catalogue("gitlab")
_ISSUES = "SELECT i.*, p.path FROM issues i JOIN projects p ON p.path = i.project"


def _open(path: str) -> list[Move]:
    return [write("Search projects", path, enter=True), link(path)]


@repositories("How many open issues does the project {{project}} have?")
def _open_issues(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM projects"):
        count = str(facts.one("SELECT count(*) FROM issues WHERE project = ? AND state = 'open'", row["path"]))
        yield {"project": row["path"]}, told(count), [*_open(row["path"]), link("Issues"), stop(count)]


@repositories("Whose is the latest commit to {{project}}? Give the account.")
def _latest(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM projects"):
        author = facts.one("SELECT author FROM commits WHERE project = ? ORDER BY day DESC", row["path"])
        yield {"project": row["path"]}, told_exactly(author), [*_open(row["path"]), link("Commits"), stop(author)]


@repositories("How many commits did {{author}} make to {{project}}?")
def _commits(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT author, project, count(*) AS n FROM commits GROUP BY author, project"):
        values = {"author": row["author"], "project": row["project"]}
        yield values, told(str(row["n"])), [*_open(row["project"]), link("Commits"), stop(str(row["n"]))]


@repositories("Which role has {{member}} in the project {{project}}?")
def _role(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM project_members WHERE role != 'Owner'"):
        values = {"member": row["username"], "project": row["project"]}
        yield values, told(row["role"]), [*_open(row["project"]), link("Members"), stop(row["role"])]


@repositories("On which port does {{project}} run according to its README?")
def _port(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM files WHERE name = 'README.md'"):
        port = row["content"].partition("--port ")[2].split()[0]
        yield {"project": row["project"]}, told(port), [*_open(row["project"]), stop(port)]


@repositories("Show me the merge requests of {{project}} that are {{state}}")
def _merges(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM projects"):
        state = facts.random.choice(("open", "merged", "closed"))
        page = f"__GITLAB__/{row['path']}/-/merge_requests?state={state}"
        yield (
            {"project": row["path"], "state": state},
            arrived(page),
            [*_open(row["path"]), link("Merge requests"), link(state.capitalize()), stop()],
        )


@repositories('Show me the open issues of {{project}} with the label "{{label}}"')
def _labelled(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM projects"):
        label = facts.random.choice(LABELS)
        page = f"__GITLAB__/{row['path']}/-/issues?state=open&label={label}"
        yield {"project": row["path"], "label": label}, arrived(page), [*_open(row["path"]), link("Issues"), link(f"Only {label}"), stop()]


@repositories('Open the issue "{{title}}" of {{project}}')
def _open_issue(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(f"{_ISSUES} WHERE state = 'open'"):
        page = f"__GITLAB__/{row['path']}/-/issues/{row['number']}"
        yield (
            {"title": row["title"], "project": row["path"]},
            arrived(page),
            [*_open(row["path"]), link("Issues"), link(row["title"]), stop()],
        )


@repositories("Show me the changelog of {{project}}")
def _changes(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM projects"):
        yield (
            {"project": row["path"]},
            arrived(f"__GITLAB__/{row['path']}/-/blob/CHANGES.md"),
            [*_open(row["path"]), link("CHANGES.md"), stop()],
        )


@repositories('Create an issue in {{project}} with the title "{{title}}" and the label {{label}}')
def _create_issue(facts: Facts) -> Iterable[Instance]:
    titles = (
        "Support for tables",
        "Typing mistake on page two",
        "It stops after midnight",
        "How do I undo this?",
        "A dark theme",
        "Wrong sum at the end",
    )
    for row, title in zip(facts.some("SELECT * FROM projects"), titles, strict=False):
        label = facts.random.choice(LABELS)
        number = facts.one("SELECT max(number) + 1 FROM issues WHERE project = ?", row["path"])
        moves = [link("Issues"), link("New issue"), write("Issue title", title), click("radio", label), button("Create issue")]
        check = shown((f"__GITLAB__/{row['path']}/-/issues/{number}", "document.querySelector('main').outerText", [title, label, USER]))
        yield {"project": row["path"], "title": title, "label": label}, check, [*_open(row["path"]), *moves, stop()]


@repositories("Star the project {{project}}")
def _star(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM projects"):
        check = shown((f"__GITLAB__/users/{USER}", text_of("#starred"), [row["path"]]))
        yield {"project": row["path"]}, check, [*_open(row["path"]), button("Star"), stop()]


@repositories("Invite {{member}} to my project {{project}} as {{role}}")
def _invite(facts: Facts) -> Iterable[Instance]:
    strangers = (
        "SELECT p.path, u.username FROM projects p, users u WHERE p.owner = ? "
        "AND u.username NOT IN (SELECT username FROM project_members WHERE project = p.path)"
    )
    for row in facts.some(strangers, USER):
        role = facts.random.choice(ROLES[:4])
        moves = [link("Members"), write("Account of the new member", row["username"]), click("radio", role), button("Invite")]
        page = f"__GITLAB__/{row['path']}/-/project_members"
        check = shown((page, f"func:gitlab_get_project_memeber_role(__page__, '{row['username']}')", role))
        yield {"member": row["username"], "project": row["path"], "role": role}, check, [*_open(row["path"]), *moves, stop()]


@repositories('Close the issue "{{title}}" of {{project}}')
def _close(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(f"{_ISSUES} WHERE state = 'open'"):
        check = shown((f"__GITLAB__/{row['path']}/-/issues/{row['number']}", text_of("#state"), "closed"))
        plan = [*_open(row["path"]), link("Issues"), link(row["title"]), button("Close issue"), stop()]
        yield {"title": row["title"], "project": row["path"]}, check, plan


@repositories('Assign the issue "{{title}}" of {{project}} to {{user}}')
def _assign(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(f"{_ISSUES} WHERE state = 'open' AND assignee = ''"):
        user = facts.random.choice(facts.some("SELECT username FROM project_members WHERE project = ?", row["path"]))["username"]
        check = shown((f"__GITLAB__/{row['path']}/-/issues/{row['number']}", text_of("#assignee"), user))
        plan = [*_open(row["path"]), link("Issues"), link(row["title"]), write("Assignee", user), button("Assign"), stop()]
        yield {"title": row["title"], "project": row["path"], "user": user}, check, plan


@repositories('Create a {{visibility}} project called "{{name}}" with the description "{{description}}"')
def _create_project(facts: Facts) -> Iterable[Instance]:
    for name, description in (
        ("teapot", "Answers every request with 418"), ("mosaic", "Puts small pictures together"), ("inkwell", "Notes in plain text"),
        ("weathervane", "Shows where the wind comes from"), ("satchel", "Packs folders"), ("orrery", "Moves planets"),
    ):  # fmt: skip
        visibility = facts.random.choice(("Public", "Private"))
        moves = [link("New project"), write("Project name", name), write("Project description", description), click("radio", visibility)]
        page = f"__GITLAB__/{USER}/{name}"
        check = shown((page, text_of("#description"), description), (page, text_of("#visibility"), visibility))
        values = {"visibility": visibility.lower(), "name": name, "description": description}
        yield values, check, [*moves, button("Create project"), stop()]


@repositories("Follow {{person}}")
def _follow(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(
        "SELECT * FROM users WHERE username != ? AND username NOT IN (SELECT followed FROM follows WHERE username = ?)", USER, USER
    ):
        check = shown((f"__GITLAB__/users/{USER}", text_of(".user-profile"), [f"@{row['username']}"]))
        yield {"person": row["name"]}, check, [link("People"), link(row["name"]), button("Follow"), stop()]


@repositories('Change the description of my project {{project}} to "{{description}}"')
def _describe(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM projects WHERE owner = ?", USER):
        for description in ("Moved to a new home", "Looking for somebody to take over"):
            check = shown((f"__GITLAB__/{row['path']}", text_of("#description"), description))
            moves = [link("Settings"), write("Project description", description), button("Save settings"), stop()]
            yield {"project": row["path"], "description": description}, check, [*_open(row["path"]), *moves]
