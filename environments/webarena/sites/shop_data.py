"""Initial data of the shop: products, reviews, customers and their orders."""

from __future__ import annotations

import sqlite3
from random import Random

from environments.webarena.sites.people import days_ago, people

CUSTOMER, PASSWORD = "greta", "lantern-42"
"""The account of the tasks' agent."""
CUSTOMER_NAME, CUSTOMER_EMAIL = "Greta Holm", "greta@holm.example"

SCHEMA = """
CREATE TABLE categories (slug TEXT PRIMARY KEY, name TEXT);
CREATE TABLE products (
    id INTEGER PRIMARY KEY, sku TEXT, slug TEXT, name TEXT, category TEXT, price INTEGER, stock INTEGER, colour TEXT, description TEXT);
CREATE TABLE reviews (id INTEGER PRIMARY KEY, product INTEGER, author TEXT, rating INTEGER, title TEXT, body TEXT, day TEXT);
CREATE TABLE customers (
    username TEXT PRIMARY KEY, password TEXT, name TEXT, email TEXT, street TEXT, city TEXT, postcode TEXT, phone TEXT, newsletter INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, day TEXT, status TEXT, street TEXT, city TEXT, postcode TEXT);
CREATE TABLE order_items (order_id INTEGER, product INTEGER, quantity INTEGER, price INTEGER);
CREATE TABLE cart (customer TEXT, product INTEGER, quantity INTEGER, PRIMARY KEY (customer, product));
CREATE TABLE wishes (customer TEXT, product INTEGER, PRIMARY KEY (customer, product));
CREATE TABLE messages (id INTEGER PRIMARY KEY, customer TEXT, subject TEXT, body TEXT);
CREATE VIEW rated_products AS SELECT p.*,
    (SELECT count(*) FROM reviews WHERE product = p.id) AS reviews,
    (SELECT round(avg(rating), 1) FROM reviews WHERE product = p.id) AS rating FROM products p;
"""

_CATEGORIES = {
    "lamps": ("Lamps", "Lamp", 3_500),
    "desks": ("Desks", "Desk", 19_000),
    "chairs": ("Chairs", "Chair", 9_000),
    "rugs": ("Rugs", "Rug", 7_500),
    "kettles": ("Kettles", "Kettle", 2_800),
    "clocks": ("Clocks", "Clock", 4_200),
    "shelves": ("Shelves", "Shelf", 6_400),
    "blankets": ("Blankets", "Blanket", 3_900),
}
_LINES = (
    "Alderly", "Brackwater", "Corvane", "Dunholt", "Elmsworth", "Fernhill", "Glenrock", "Harbourne", "Inverlea", "Juniper",
    "Kestrel", "Larkspur", "Moorgate", "Northwick", "Oakhurst", "Pinebrook", "Quarrier", "Rosedale", "Silverton", "Thistle",
)  # fmt: skip
_COLOURS = (
    "white",
    "black",
    "moss green",
    "slate grey",
    "ochre",
    "dark blue",
    "terracotta",
    "natural oak",
)
_MAKERS = (
    "a family workshop",
    "a cooperative of twelve people",
    "a small mill by the sea",
    "two brothers in the hills",
)
_PRAISE = {
    5: ("Wonderful", "I would buy it again at once; it looks even better than in the picture."),
    4: ("Very good", "Well made and quickly delivered. The packaging could be simpler."),
    3: ("All right", "It does what it should, no more and no less."),
    2: ("Disappointing", "The colour is not the one in the picture and one corner was scratched."),
    1: ("Broken on arrival", "It arrived in two pieces and nobody answered my letter."),
}
_STREETS = ("Mill Lane", "Castle Street", "Orchard Road", "Bridge Street", "Station Road")
_CITIES = (
    ("Ashford", "TN23 1AB"),
    ("Kendal", "LA9 4QD"),
    ("Ludlow", "SY8 1AZ"),
    ("Whitby", "YO21 3DB"),
)


def fill(
    db: sqlite3.Connection,
    seed: str = "shop",
    categories: int = len(_CATEGORIES),
    most_reviews: int = 6,
) -> None:
    """Insert a shop's rows into empty tables.

    Args:
        db: A database with the tables of `SCHEMA`.
        seed: Random seed. Each seed generates another shop from the same vocabulary.
        categories: Number of product categories, 1 to 8, with eight products each.
        most_reviews: Maximum number of reviews per product, at least 2.
    """
    random = Random(seed)
    everyone = people()
    kinds = list(_CATEGORIES.items())
    if categories < len(kinds):
        kinds = random.sample(kinds, categories)
    db.executemany(
        "INSERT INTO categories VALUES (?, ?)", [(slug, name) for slug, (name, _, _) in kinds]
    )
    products: list[tuple[int, int]] = []
    for number, (slug, (_, noun, usual)) in enumerate(kinds):
        prices = random.sample(range(usual // 2, usual * 2, 150), 8)
        for line, price in zip(random.sample(_LINES, 8), prices, strict=True):
            identity, colour = len(products) + 1, random.choice(_COLOURS)
            price += random.choice((0, 49, 95, 99))
            products.append((identity, price))
            text = f"The {line} {noun} in {colour} is made by {random.choice(_MAKERS)}."
            text += f" It comes with a guarantee of {random.randint(1, 10)} years."
            row = (
                identity,
                f"{noun[:2].upper()}-{number + 1}{identity:03}",
                f"{line}-{noun}".lower(),
                f"{line} {noun}",
                slug,
            )
            db.execute(
                "INSERT INTO products VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, price, random.choice((0, 3, 5, 8, 12, 20)), colour, text),
            )
            days = sorted(
                random.sample(range(5, 400), random.randint(2, most_reviews)), reverse=True
            )
            for day, author in zip(days, random.sample(everyone, len(days)), strict=True):
                rating = random.choice((5, 5, 4, 4, 3, 2, 1))
                title, body = _PRAISE[rating]
                db.execute(
                    "INSERT INTO reviews (product, author, rating, title, body, day) VALUES (?, ?, "
                    "?, ?, ?, ?)",
                    (identity, author.name, rating, title, body, days_ago(day)),
                )
    customers = [
        (CUSTOMER, CUSTOMER_NAME, CUSTOMER_EMAIL),
        *((person.username, person.name, person.email) for person in everyone[:12]),
    ]
    for username, name, email in customers:
        city, postcode = random.choice(_CITIES)
        street = f"{random.randint(2, 90)} {random.choice(_STREETS)}"
        password = PASSWORD if username == CUSTOMER else f"{username}-{random.randint(100, 999)}"
        phone = f"0{random.randint(1200, 1999)} {random.randint(100_000, 999_999)}"
        db.execute(
            "INSERT INTO customers VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (username, password, name, email, street, city, postcode, phone),
        )
    for number, day in enumerate(sorted(random.sample(range(2, 360), 36), reverse=True)):
        customer = CUSTOMER if number % 3 == 2 else random.choice(customers[1:])[0]
        status = "delivered" if day > 120 else random.choice(("pending", "pending", "shipped"))
        if day > 120 and random.random() < 0.2:
            status = "cancelled"
        order = 1001 + number
        db.execute(
            "INSERT INTO orders SELECT ?, username, ?, ?, street, city, postcode FROM customers "
            "WHERE username = ?",
            (order, days_ago(day), status, customer),
        )
        for product, price in random.sample(products, random.randint(1, 3)):
            db.execute(
                "INSERT INTO order_items VALUES (?, ?, ?, ?)",
                (order, product, random.randint(1, 3), price),
            )
