"""Intent templates of the shop."""

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
from environments.webarena.sites.pages import money
from environments.webarena.sites.shop_data import CUSTOMER, CUSTOMER_NAME

shop = Catalogue("shopping")
_CATEGORIES = "SELECT c.slug, c.name, lower(c.name) AS plural FROM categories c"


def _open(product: str) -> list[Move]:
    return [write("Search products", product, enter=True), link(product)]


@shop("What does the {{product}} cost?")
def _price(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM products"):
        price = money(row["price"])
        yield {"product": row["name"]}, told(price.lstrip("$")), [*_open(row["name"]), stop(price)]


@shop("How many reviews of the {{product}} give it {{stars}} stars?")
def _stars(facts: Facts) -> Iterable[Instance]:
    counted = (
        "SELECT p.name, r.rating, count(*) AS n FROM reviews r JOIN products p ON p.id = r.product GROUP BY p.id, rating HAVING rating > 1"
    )
    for row in facts.some(counted):
        yield {"product": row["name"], "stars": row["rating"]}, told(str(row["n"])), [*_open(row["name"]), stop(str(row["n"]))]


@shop("Which is the cheapest of all {{category}} in the shop?")
def _cheapest(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(_CATEGORIES):
        name = facts.one("SELECT name FROM products WHERE category = ? ORDER BY price", row["slug"])
        yield {"category": row["plural"]}, told(name), [link(row["name"]), link("Cheapest first"), stop(name)]


@shop("Who wrote the most recent review of the {{product}}?")
def _reviewer(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM products"):
        author = facts.one("SELECT author FROM reviews WHERE product = ? ORDER BY id DESC", row["id"])
        yield {"product": row["name"]}, told_exactly(author), [*_open(row["name"]), stop(author)]


@shop("What is the total of my order number {{order}}?")
def _total(facts: Facts) -> Iterable[Instance]:
    query = (
        "SELECT o.id, sum(i.quantity * i.price) AS total FROM orders o JOIN order_items i ON i.order_id = o.id "
        "WHERE customer = ? GROUP BY o.id"
    )
    for row in facts.some(query, CUSTOMER):
        total = money(row["total"])
        yield {"order": row["id"]}, told(total.lstrip("$")), [link("Orders"), link(f"Order {row['id']}"), stop(total)]


@shop("Show me all {{category}}, the cheapest first")
def _sorted(facts: Facts) -> Iterable[Instance]:
    for row in facts.some(_CATEGORIES):
        page = f"__SHOPPING__/category/{row['slug']}?sort=price"
        yield {"category": row["plural"]}, arrived(page), [link(row["name"]), link("Cheapest first"), stop()]


@shop("Open my order number {{order}}")
def _open_order(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT id FROM orders WHERE customer = ?", CUSTOMER):
        page = f"__SHOPPING__/sales/order/view/order_id/{row['id']}/"
        yield {"order": row["id"]}, arrived(page), [link("Orders"), link(f"Order {row['id']}"), stop()]


@shop('Search the shop for "{{words}}"')
def _search(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT DISTINCT colour FROM products"):
        page = f"__SHOPPING__/search?q={row['colour'].replace(' ', '+')}"
        yield {"words": row["colour"]}, arrived(page), [write("Search products", row["colour"], enter=True), stop()]


@shop("Put {{quantity}} pieces of the {{product}} into my cart")
def _cart(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM products WHERE stock > 0"):
        quantity = facts.random.randint(2, 9)
        plan = [*_open(row["name"]), write("Quantity", str(quantity)), button("Add to cart"), stop()]
        yield (
            {"quantity": quantity, "product": row["name"]},
            shown(("__SHOPPING__/cart", text_of("#cart"), [row["name"], f"{quantity} pieces"])),
            plan,
        )


@shop("Add the {{product}} to my wish list")
def _wish(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM products"):
        check = shown(("__SHOPPING__/wishlist", text_of("#wishes"), [row["name"]]))
        yield {"product": row["name"]}, check, [*_open(row["name"]), button("Add to wish list"), stop()]


@shop('Review the {{product}} with {{stars}} stars, the title "{{title}}" and the text "{{body}}"')
def _review(facts: Facts) -> Iterable[Instance]:
    titles = ("Better than hoped", "Not for me", "A good gift", "Sturdy", "Two weeks on", "Late but fine", "Looks smaller", "My second one")
    for row, title in zip(facts.some("SELECT * FROM products"), titles, strict=False):
        stars, body = facts.random.randint(2, 5), f"I use the {row['name']} every day since it came."
        moves = [click("radio", f"{stars} stars"), write("Review title", title), write("Review text", body), button("Send review")]
        check = shown(
            (f"__SHOPPING__/product/{row['slug']}", text_of(".review"), [title, body, CUSTOMER_NAME]),
            ("last", f"func:shopping_get_sku_latest_review_rating('{row['sku']}')", str(stars * 20)),
        )
        yield {"product": row["name"], "stars": stars, "title": title, "body": body}, check, [*_open(row["name"]), *moves, stop()]


@shop("I have moved. Change the address of my account to {{street}}, {{city}}, {{postcode}}")
def _address(facts: Facts) -> Iterable[Instance]:
    streets = (
        "14 Quay Street",
        "3 Rope Walk",
        "27 Abbey Lane",
        "9 Tanner Row",
        "51 Canal Road",
        "6 Hop Garden",
        "18 Beacon Hill",
        "2 Old Dairy",
    )
    towns = (("Ludlow", "SY8 2QP"), ("Kendal", "LA9 7TY"), ("Whitby", "YO22 4DE"), ("Ashford", "TN24 8RS"))
    for number, street in enumerate(streets):
        city, postcode = towns[number % len(towns)]
        moves = [write("Street", street), write("City", city), write("Postcode", postcode), button("Save account")]
        check = shown(("__SHOPPING__/account", text_of("#account"), [f"{street}, {city}, {postcode}"]))
        yield {"street": street, "city": city, "postcode": postcode}, check, [link("Account"), *moves, stop()]


@shop("Buy one {{product}} and have it sent to my usual address")
def _buy(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM products WHERE stock > 0"):
        page = "func:shopping_get_latest_order_url()"
        check = shown((page, text_of("#items"), [row["name"], "1 pieces"]), (page, text_of("#status"), "pending"))
        yield {"product": row["name"]}, check, [*_open(row["name"]), button("Add to cart"), button("Place order"), stop()]


@shop("Cancel my order number {{order}}")
def _cancel(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT id FROM orders WHERE customer = ? AND status = 'pending'", CUSTOMER):
        check = shown((f"__SHOPPING__/sales/order/view/order_id/{row['id']}/", text_of("#status"), "cancelled"))
        yield {"order": row["id"]}, check, [link("Orders"), link(f"Order {row['id']}"), button("Cancel this order"), stop()]


@shop('Write to the shop with the subject "{{subject}}" and ask: {{question}}')
def _write(facts: Facts) -> Iterable[Instance]:
    for row in facts.some("SELECT * FROM products"):
        subject, question = (
            f"About the {row['name']}",
            f"Will the {row['name']} be sold in {facts.random.choice(('red', 'yellow', 'pink'))} again?",
        )
        moves = [write("Subject", subject), write("Message", question), button("Send message")]
        check = shown(("__SHOPPING__/contact", text_of("#messages"), [subject, question]))
        yield {"subject": subject, "question": question}, check, [link("Contact us"), *moves, stop()]
