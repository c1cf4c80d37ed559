"""The shop: catalogue, search, reviews, cart, wish list, orders and account.

`/rest` mimics Magento.
"""

from __future__ import annotations

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from environments.webarena.sites.pages import Visit, contains, login_routes, page, whole
from environments.webarena.sites.people import TODAY

SITE = "shop"
_SORTS = {"price": "price", "price-desc": "price DESC", "name": "name"}
_PRODUCTS = (
    "SELECT p.*, (SELECT count(*) FROM reviews WHERE product = p.id) AS reviews, "
    "(SELECT round(avg(rating), 1) FROM reviews WHERE product = p.id) AS rating FROM products p"
)
_ADDRESS = ("street", "city", "postcode")


def _categories(visit: Visit) -> list[object]:
    return list(visit.rows("SELECT * FROM categories"))


def _home(visit: Visit) -> Response:
    return visit.render(
        "shop/products.html", title="Welcome", categories=_categories(visit), sort="", products=visit.rows(f"{_PRODUCTS} WHERE id % 8 = 1")
    )


def _category(visit: Visit) -> Response:
    category = visit.row("SELECT * FROM categories WHERE slug = ?", visit.part["slug"])
    if category is None:
        return visit.missing()
    sort = visit.query.get("sort", "name")
    products = visit.rows(f"{_PRODUCTS} WHERE category = ? ORDER BY {_SORTS.get(sort, 'name')}", category["slug"])
    return visit.render("shop/products.html", title=category["name"], categories=_categories(visit), sort=sort, products=products)


def _search(visit: Visit) -> Response:
    wanted = visit.query.get("q", "").strip()
    pattern = contains(wanted)
    found = visit.rows(f"{_PRODUCTS} WHERE name LIKE ? ESCAPE '!' OR description LIKE ? ESCAPE '!' ORDER BY name", pattern, pattern)
    title = f"{len(found)} products found for '{wanted}'"
    return visit.render("shop/products.html", title=title, categories=_categories(visit), sort="", products=found)


def _product(visit: Visit) -> Response:
    product = visit.row(f"{_PRODUCTS} WHERE slug = ?", visit.part["slug"])
    if product is None:
        return visit.missing()
    reviews = visit.rows("SELECT * FROM reviews WHERE product = ? ORDER BY id DESC", product["id"])
    return visit.render("shop/product.html", categories=_categories(visit), product=product, reviews=reviews)


def _review(visit: Visit) -> Response:
    product = visit.row("SELECT * FROM products WHERE slug = ?", visit.part["slug"])
    if product is None:
        return visit.missing()
    rating, title, body = whole(visit.form.get("rating"), 1, 5), visit.form.get("title"), visit.form.get("body")
    if rating is None or not title or not body:
        visit.notice("A review needs a rating, a title and a text.")
    else:
        name = visit.row("SELECT name FROM customers WHERE username = ?", visit.user)
        visit.run(
            "INSERT INTO reviews (product, author, rating, title, body, day) VALUES (?, ?, ?, ?, ?, ?)",
            product["id"], name and name["name"], rating, title, body, TODAY.isoformat(),
        )  # fmt: skip
        visit.notice("Thank you for your review.")
    return visit.go(f"/product/{product['slug']}")


def _cart(visit: Visit) -> Response:
    items = visit.rows(
        "SELECT p.*, c.quantity FROM cart c JOIN products p ON p.id = c.product WHERE customer = ? ORDER BY p.name", visit.user
    )
    total = sum(item["price"] * item["quantity"] for item in items)
    customer = visit.row("SELECT * FROM customers WHERE username = ?", visit.user)
    return visit.render("shop/cart.html", categories=_categories(visit), items=items, total=total, customer=customer)


def _put_in_cart(visit: Visit) -> Response:
    product = visit.row("SELECT * FROM products WHERE slug = ?", visit.part["slug"])
    if product is None:
        return visit.missing()
    quantity = whole(visit.form.get("quantity"), 0, 99)
    if quantity is None:
        visit.notice("The quantity is a number from 0 to 99.")
        return visit.go(f"/product/{product['slug']}")
    if visit.form.get("change") == "set":
        visit.run("UPDATE cart SET quantity = ? WHERE customer = ? AND product = ?", quantity, visit.user, product["id"])
    elif product["stock"] == 0:
        visit.notice(f"{product['name']} is sold out.")
        return visit.go(f"/product/{product['slug']}")
    else:
        add = "INSERT INTO cart VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET quantity = min(99, quantity + excluded.quantity)"
        visit.run(add, visit.user, product["id"], quantity)
    visit.run("DELETE FROM cart WHERE quantity = 0")
    return visit.go("/cart")


def _buy(visit: Visit) -> Response:
    items = visit.rows("SELECT p.id, p.price, c.quantity FROM cart c JOIN products p ON p.id = c.product WHERE customer = ?", visit.user)
    address = [visit.form.get(name, "") for name in _ADDRESS]
    if not items or not all(address):
        visit.notice("An order needs at least one product and a whole address.")
        return visit.go("/cart")
    order = visit.run(
        "INSERT INTO orders (customer, day, status, street, city, postcode) VALUES (?, ?, 'pending', ?, ?, ?)",
        visit.user, TODAY.isoformat(), *address,
    )  # fmt: skip
    for item in items:
        visit.run("INSERT INTO order_items VALUES (?, ?, ?, ?)", order, item["id"], item["quantity"], item["price"])
    visit.run("DELETE FROM cart WHERE customer = ?", visit.user)
    visit.notice(f"Thank you. Your order has the number {order}.")
    return visit.go(_order_path(order))


def _order_path(order: int) -> str:
    return f"/sales/order/view/order_id/{order}/"


def _orders(visit: Visit) -> Response:
    orders = visit.rows(
        "SELECT o.*, sum(i.quantity * i.price) AS total FROM orders o JOIN order_items i ON i.order_id = o.id "
        "WHERE customer = ? GROUP BY o.id ORDER BY o.id DESC",
        visit.user,
    )
    return visit.render("shop/orders.html", categories=_categories(visit), orders=orders)


def _order(visit: Visit) -> Response:
    order = visit.row("SELECT * FROM orders WHERE id = ? AND customer = ?", visit.part["order"], visit.user)
    if order is None:
        return visit.missing()
    items = visit.rows("SELECT p.name, p.slug, i.* FROM order_items i JOIN products p ON p.id = i.product WHERE order_id = ?", order["id"])
    total = sum(item["price"] * item["quantity"] for item in items)
    return visit.render("shop/order.html", categories=_categories(visit), order=order, items=items, total=total)


def _cancel(visit: Visit) -> Response:
    number = visit.part["order"]
    found = visit.row(
        "UPDATE orders SET status = 'cancelled' WHERE id = ? AND customer = ? AND status = 'pending' RETURNING id", number, visit.user
    )
    visit.notice("The order is cancelled." if found else "Only an order that is pending can be cancelled.")
    return visit.go(_order_path(number))


def _wishes(visit: Visit) -> Response:
    products = visit.rows(f"{_PRODUCTS} JOIN wishes w ON w.product = p.id WHERE w.customer = ? ORDER BY name", visit.user)
    return visit.render("shop/wishes.html", categories=_categories(visit), products=products)


def _wish(visit: Visit) -> Response:
    visit.run("INSERT OR IGNORE INTO wishes SELECT ?, id FROM products WHERE slug = ?", visit.user, visit.part["slug"])
    return visit.go("/wishlist")


def _account(visit: Visit) -> Response:
    customer = visit.row("SELECT * FROM customers WHERE username = ?", visit.user)
    return visit.render("shop/account.html", categories=_categories(visit), customer=customer)


def _change_account(visit: Visit) -> Response:
    fields = [visit.form.get(name, "") for name in (*_ADDRESS, "phone")]
    if not all(fields):
        visit.notice("Street, city, postcode and phone are needed.")
    else:
        newsletter = int("newsletter" in visit.form)
        change = "UPDATE customers SET street = ?, city = ?, postcode = ?, phone = ?, newsletter = ? WHERE username = ?"
        visit.run(change, *fields, newsletter, visit.user)
        visit.notice("Your account is saved.")
    return visit.go("/account")


def _contact(visit: Visit) -> Response:
    messages = visit.rows("SELECT * FROM messages WHERE customer = ? ORDER BY id DESC", visit.user)
    return visit.render("shop/contact.html", categories=_categories(visit), messages=messages)


def _write(visit: Visit) -> Response:
    subject, body = visit.form.get("subject"), visit.form.get("body")
    if not subject or not body:
        visit.notice("A message needs a subject and a text.")
    else:
        visit.run("INSERT INTO messages (customer, subject, body) VALUES (?, ?, ?)", visit.user, subject, body)
        visit.notice("Your message is sent.")
    return visit.go("/contact")


def _rest_orders(visit: Visit) -> Response:
    last = visit.row("SELECT id FROM orders ORDER BY day DESC, id DESC")
    return JSONResponse({"items": [{"increment_id": f"{last['id']:09}"}] if last else []})


def _rest_reviews(visit: Visit) -> Response:
    reviews = visit.rows("SELECT r.* FROM reviews r JOIN products p ON p.id = r.product WHERE p.sku = ? ORDER BY r.id", visit.part["sku"])
    return JSONResponse(
        [{"nickname": row["author"], "ratings": [{"rating_name": "Rating", "percent": row["rating"] * 20}]} for row in reviews]
    )


def routes() -> list[Route]:
    """Return the shop's routes."""
    return [
        page(SITE, "/", _home),
        page(SITE, "/category/{slug}", _category),
        page(SITE, "/search", _search),
        page(SITE, "/product/{slug}", _product),
        page(SITE, "/product/{slug}/review", _review, post=True, private=True),
        page(SITE, "/product/{slug}/cart", _put_in_cart, post=True, private=True),
        page(SITE, "/product/{slug}/wish", _wish, post=True, private=True),
        page(SITE, "/cart", _cart, private=True),
        page(SITE, "/cart/buy", _buy, post=True, private=True),
        page(SITE, "/sales/order/history", _orders, private=True),
        page(SITE, "/sales/order/view/order_id/{order:int}/", _order, private=True),
        page(SITE, "/sales/order/cancel/order_id/{order:int}/", _cancel, post=True, private=True),
        page(SITE, "/wishlist", _wishes, private=True),
        page(SITE, "/account", _account, private=True),
        page(SITE, "/account", _change_account, post=True, private=True),
        page(SITE, "/contact", _contact, private=True),
        page(SITE, "/contact", _write, post=True, private=True),
        page(SITE, "/rest/default/V1/integration/admin/token", lambda _: JSONResponse("embedded"), post=True),
        page(SITE, "/rest/V1/orders", _rest_orders),
        page(SITE, "/rest/V1/products/{sku}/reviews", _rest_reviews),
        *login_routes(SITE, "customers"),
    ]
