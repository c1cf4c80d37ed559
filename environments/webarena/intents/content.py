"""Intent templates of the content manager."""

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
from environments.webarena.sites.content_data import SECTIONS, STAFF_ROLES, STATUSES

content = Catalogue("shopping_admin")
_ONCE = (
    "SELECT c.*, a.title FROM article_comments c JOIN articles a ON a.id = c.article "
    "WHERE c.status = 'pending' GROUP BY reader, article HAVING count(*) = 1"
)


def _open(title: str) -> list[Move]:
    return [link("Articles"), write("Search titles", title, enter=True), link(title)]


def _editor(number: int) -> str:
    return f"__SHOPPING_ADMIN__/articles/{number}/edit"


def _marked(fieldset: str) -> str:
    return f"document.querySelector('#{fieldset} input:checked').value"


@content("How many articles of the section {{section}} are {{status}}?")
def _count(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT section, status, count(*) AS n FROM articles WHERE status != 'archived' GROUP BY section, status"):
        plan = [link("Articles"), link(f"Only {row['status']}"), link(f"Only {row['section']}"), stop(str(row["n"]))]
        yield {"section": row["section"], "status": row["status"]}, told(str(row["n"])), plan


@content("Which article of the section {{section}} has been read most often?")
def _most_read(facts: Facts) -> Iterable[Instance]:
    for section in SECTIONS:
        title = facts.one("SELECT title FROM articles WHERE section = ? ORDER BY views DESC", section)
        yield {"section": section}, told(title), [link("Articles"), link(f"Only {section}"), link("Most read first"), stop(title)]


@content('Who wrote the article "{{title}}"?')
def _author(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM articles"):
        plan = [link("Articles"), write("Search titles", row["title"], enter=True), stop(row["author"])]
        yield {"title": row["title"]}, told_exactly(row["author"]), plan


@content('How often has the article "{{title}}" been read?')
def _views(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM articles WHERE views > 0"):
        plan = [link("Articles"), write("Search titles", row["title"], enter=True), stop(f"{row['views']} times")]
        yield {"title": row["title"]}, told(str(row["views"])), plan


@content("What is the role of {{name}} on our staff?")
def _staff_role(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM staff"):
        yield {"name": row["name"]}, told(row["role"]), [link("Staff"), stop(row["role"])]


@content("Show me the articles of the section {{section}} that are {{status}}")
def _filter(facts: Facts) -> Iterable[Instance]:
    for section in SECTIONS:
        status = facts.random.choice(STATUSES)
        page = f"__SHOPPING_ADMIN__/articles?status={status}&section={section}"
        yield (
            {"section": section, "status": status},
            arrived(page),
            [link("Articles"), link(f"Only {status}"), link(f"Only {section}"), stop()],
        )


@content('Open the article "{{title}}" for editing')
def _open_editor(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM articles"):
        yield {"title": row["title"]}, arrived(_editor(row["id"])), [*_open(row["title"]), stop()]


@content("Show me the comments that are marked as {{status}}")
def _comments(facts: Facts) -> Iterable[Instance]:
    for status in ("approved", "spam"):
        yield (
            {"status": status},
            arrived(f"__SHOPPING_ADMIN__/comments?status={status}"),
            [link("Comments"), link(f"Show {status}"), stop()],
        )


@content('Show me the article "{{title}}" as our readers see it')
def _read(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM articles WHERE status = 'published'"):
        yield {"title": row["title"]}, arrived(f"articles/{row['slug']}"), [link("The paper"), link(row["title"]), stop()]


@content('Publish the draft "{{title}}"')
def _publish(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM articles WHERE status = 'draft'"):
        check = shown((_editor(row["id"]), _marked("status"), "published"))
        yield {"title": row["title"]}, check, [*_open(row["title"]), click("radio", "published"), button("Save article"), stop()]


@content('Change the title of the article "{{title}}" to "{{new}}"')
def _rename(facts: Facts) -> Iterable[Instance]:
    titles = (
        "What the river left behind",
        "A quiet week",
        "Nobody asked the bees",
        "Three days in spring",
        "The clock stands still",
        "Bread and rain",
    )
    for row, new in zip(facts.some("SELECT * FROM articles"), titles, strict=False):
        check = shown((_editor(row["id"]), "document.querySelector('[name=title]').value", new))
        yield (
            {"title": row["title"], "new": new},
            check,
            [*_open(row["title"]), write("Article title", new), button("Save article"), stop()],
        )


@content('Move the article "{{title}}" to the section {{section}}')
def _move(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM articles"):
        section = facts.random.choice([name for name in SECTIONS if name != row["section"]])
        check = shown((_editor(row["id"]), _marked("section"), section))
        plan = [*_open(row["title"]), click("radio", section), button("Save article"), stop()]
        yield {"title": row["title"], "section": section}, check, plan


@content('Approve the comment of {{reader}} on "{{title}}"')
def _approve(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(_ONCE):
        heading = f"{row['reader']} on {row['title']}"
        check = shown(("__SHOPPING_ADMIN__/comments?status=approved", text_of("#comments"), [heading]))
        yield {"reader": row["reader"], "title": row["title"]}, check, [link("Comments"), button(f"Approve: {heading}"), stop()]


@content('Mark the comment of {{reader}} on "{{title}}" as spam')
def _spam(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(_ONCE):
        heading = f"{row['reader']} on {row['title']}"
        check = shown(("__SHOPPING_ADMIN__/comments?status=spam", text_of("#comments"), [heading]))
        yield {"reader": row["reader"], "title": row["title"]}, check, [link("Comments"), button(f"Mark as spam: {heading}"), stop()]


@content('Write an article for the section {{section}} with the title "{{title}}" and the text "{{text}}", and publish it')
def _write(facts: Facts) -> Iterable[Instance]:
    number = facts.one("SELECT max(id) + 1 FROM articles")
    titles = (
        "The ferry stays",
        "A choir without a leader",
        "Ice on the lower lake",
        "Market day moves",
        "One more week of sun",
        "A letter from the mill",
    )
    for section, title in zip(SECTIONS, titles, strict=True):
        text = f"{title}: more about this in our next issue."
        moves = [write("Article title", title), click("radio", section), click("radio", "published"), write("Article text", text)]
        check = shown(
            (_editor(number), "document.querySelector('[name=title]').value", title),
            (_editor(number), "document.querySelector('[name=body]').value", [text]),
            (_editor(number), _marked("section"), section),
            (_editor(number), _marked("status"), "published"),
        )
        yield {"section": section, "title": title, "text": text}, check, [link("New article"), *moves, button("Save article"), stop()]


@content('Set the tagline of the paper to "{{tagline}}"')
def _tagline(facts: Facts) -> Iterable[Instance]:
    for tagline in (
        "Read by the whole valley",
        "Printed since 1871",
        "Slow news, well told",
        "Between the tides",
        "For both banks",
        "Every Friday",
    ):
        check = shown(("__SHOPPING_ADMIN__/settings", "document.querySelector('[name=tagline]').value", tagline))
        yield {"tagline": tagline}, check, [link("Settings"), write("Tagline", tagline), button("Save settings"), stop()]


@content("Add {{name}} to the staff as {{role}} with the account {{account}}")
def _hire(facts: Facts) -> Iterable[Instance]:
    for name in ("Ruth Ashdown", "Malik Sorley", "Ines Calder", "Tobias Fenn", "Nora Wick", "Emil Harrow"):
        account, role = name.lower().replace(" ", "-"), facts.random.choice(STAFF_ROLES)
        check = shown(("__SHOPPING_ADMIN__/staff", text_of("#staff"), [account, name, role]))
        moves = [write("New account", account), write("Full name", name), click("radio", role), button("Add to staff")]
        yield {"name": name, "role": role, "account": account}, check, [link("Staff"), *moves, stop()]
