"""The shop: catalogue, search, reviews, cart, wish list, orders and account.

`/rest` mimics Magento.
"""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from environments.webarena.sites.pages import Site, Visit, whole
from environments.webarena.sites.people import TODAY

site = Site("shop")
_PRODUCT = "(SELECT id FROM products WHERE slug = :slug)"
_ADDRESS = ("street", "city", "postcode")
site.add_sign_in("customers")
site.pages(
    {
        "/": "home.html",
        "/category/{slug}": "category.html",
        "/search": "search.html",
        "/product/{slug}": "product.html",
    }
)
site.pages(
    {
        "/cart": "cart.html",
        "/sales/order/history": "orders.html",
        "/sales/order/view/order_id/{order:row}/": "order.html",
        "/wishlist": "wishes.html",
        "/account": "account.html",
        "/contact": "contact.html",
    },
    private=True,
)


@site.post("/product/{slug}/review")
def _review(visit: Visit) -> Response:
    given = visit.given
    if visit.row(_PRODUCT[1:-1]) is None:
        return visit.missing()
    rating = whole(given["rating"], 1, 5)
    if rating is None or not given["title"] or not given["body"]:
        visit.notice("A review needs a rating, a title and a text.")
    else:
        visit.run(
            f"INSERT INTO reviews (product, author, rating, title, body, day) SELECT {_PRODUCT}, "
            "(SELECT name FROM customers WHERE username = :user), :rating, :title, :body, :day",
            rating=rating,
            day=TODAY.isoformat(),
        )
        visit.notice("Thank you for your review.")
    return visit.go(f"/product/{given['slug']}")


@site.post("/product/{slug}/cart")
def _put_in_cart(visit: Visit) -> Response:
    product = visit.row("SELECT * FROM products WHERE slug = :slug")
    if product is None:
        return visit.missing()
    quantity = whole(visit.given["quantity"], 0, 99)
    if quantity is None:
        visit.notice("The quantity is a number from 0 to 99.")
        return visit.go(f"/product/{product['slug']}")
    if visit.given["change"] == "set":
        visit.run(
            f"UPDATE cart SET quantity = :quantity WHERE customer = :user AND product = {_PRODUCT}",
            quantity=quantity,
        )
    elif product["stock"] == 0:
        visit.notice(f"{product['name']} is sold out.")
        return visit.go(f"/product/{product['slug']}")
    else:
        visit.run(
            f"INSERT INTO cart VALUES (:user, {_PRODUCT}, :quantity) "
            "ON CONFLICT DO UPDATE SET quantity = min(99, quantity + excluded.quantity)",
            quantity=quantity,
        )
    visit.run("DELETE FROM cart WHERE quantity = 0")
    return visit.go("/cart")


@site.post("/cart/buy")
def _buy(visit: Visit) -> Response:
    is_empty = visit.row("SELECT 1 FROM cart WHERE customer = :user") is None
    if is_empty or not all(visit.given[name] for name in _ADDRESS):
        visit.notice("An order needs at least one product and a whole address.")
        return visit.go("/cart")
    order = visit.run(
        "INSERT INTO orders (customer, day, status, street, city, postcode) VALUES (:user, :day, "
        "'pending', :street, :city, :postcode)",
        day=TODAY.isoformat(),
    )
    visit.run(
        "INSERT INTO order_items SELECT :order, p.id, c.quantity, p.price "
        "FROM cart c JOIN products p ON p.id = c.product WHERE customer = :user",
        order=order,
    )
    visit.run("DELETE FROM cart WHERE customer = :user")
    visit.notice(f"Thank you. Your order has the number {order}.")
    return visit.go(f"/sales/order/view/order_id/{order}/")


@site.post("/sales/order/cancel/order_id/{order:row}/")
def _cancel(visit: Visit) -> Response:
    found = visit.row(
        "UPDATE orders SET status = 'cancelled' WHERE id = :order AND customer = :user AND status "
        "= 'pending' RETURNING id"
    )
    wrong = "Only an order that is pending can be cancelled."
    visit.notice("The order is cancelled." if found else wrong)
    return visit.go(f"/sales/order/view/order_id/{visit.given['order']}/")


@site.post("/product/{slug}/wish")
def _wish(visit: Visit) -> Response:
    visit.run("INSERT OR IGNORE INTO wishes SELECT :user, id FROM products WHERE slug = :slug")
    return visit.go("/wishlist")


@site.post("/account")
def _change_account(visit: Visit) -> Response:
    if not all(visit.given[name] for name in (*_ADDRESS, "phone")):
        visit.notice("Street, city, postcode and phone are needed.")
    else:
        visit.run(
            "UPDATE customers SET street = :street, city = :city, postcode = :postcode, "
            "phone = :phone, newsletter = :newsletter WHERE username = :user",
            newsletter=int("newsletter" in visit.given),
        )
        visit.notice("Your account is saved.")
    return visit.go("/account")


@site.post("/contact")
def _write(visit: Visit) -> Response:
    if not visit.given["subject"] or not visit.given["body"]:
        visit.notice("A message needs a subject and a text.")
    else:
        visit.run("INSERT INTO messages (customer, subject, body) VALUES (:user, :subject, :body)")
        visit.notice("Your message is sent.")
    return visit.go("/contact")


@site.post("/rest/default/V1/integration/admin/token", private=False)
def _token(_: Visit) -> Response:
    return JSONResponse("embedded")


@site.get("/rest/V1/orders")
def _rest_orders(visit: Visit) -> Response:
    last = visit.row("SELECT id FROM orders ORDER BY day DESC, id DESC")
    return JSONResponse({"items": [{"increment_id": f"{last['id']:09}"}] if last else []})


@site.get("/rest/V1/products/{sku}/reviews")
def _rest_reviews(visit: Visit) -> Response:
    reviews = visit.rows(
        "SELECT r.* FROM reviews r JOIN products p ON p.id = r.product WHERE p.sku = :sku ORDER BY "
        "r.id"
    )
    return JSONResponse(
        [
            {
                "nickname": row["author"],
                "ratings": [{"rating_name": "Rating", "percent": row["rating"] * 20}],
            }
            for row in reviews
        ]
    )
