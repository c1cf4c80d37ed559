"""WebArena's helper functions, which task files call by name.

Example: func:shopping_get_latest_order_url(). A call is parsed as a Python expression with constant
arguments. No code is evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Error

from environments.webarena.addresses import Addresses
from environments.webarena.browser import SiteUnreachableError
from environments.webarena.task_files import TaskFileError
from environments.webarena.window import Window

LAST_URL = "__last_url__"
_ADMIN = {"username": "admin", "password": "admin1234"}
"""The published account of WebArena's shop, identical in every copy."""
_ASK = """async ([account, path]) => {
    const login = {method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(account)};
    const token = await (await fetch('/rest/default/V1/integration/admin/token', login)).json();
    const answer = await fetch(path, {headers: {Authorization: `Bearer ${token}`}});
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    return await answer.json();
}"""
_MEMBER_ROLE = """name => {
    const accounts = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
    const place = accounts.findIndex(account => account.outerText === '@' + name);
    const roles = document.querySelectorAll('td.col-max-role span');
    return place < 0 || !roles[place] ? '' : roles[place].outerText;
}"""


class Queries:
    """Queries on the sites of one finished episode.

    Args:
        window: The episode's window.
        addresses: The sites' URLs.
        last_url: The agent's last page.
    """

    def __init__(self, window: Window, addresses: Addresses, last_url: str) -> None:
        self._window = window
        self._last_url = last_url
        self._shop = addresses.urls.get("shopping", "")
        self._known: dict[str, Callable[..., Awaitable[str]]] = {
            "shopping_get_latest_order_url": self._latest_order_url,
            "shopping_get_sku_latest_review_author": self._latest_review_author,
            "shopping_get_sku_latest_review_rating": self._latest_review_rating,
            "reddit_get_post_url": self._post_url,
            "gitlab_get_project_memeber_role": self._member_role,  # spelt as in the task files
            "get_query_text": self._query_text,
        }

    async def run(self, call: str) -> str:
        """Run a query and return its result.

        Args:
            call: E.g. "reddit_get_post_url('http://forum.test/f/baking/3/x')". An argument __page__
                stands for the current page. `LAST_URL` in a text stands for the agent's last page.

        Raises:
            TaskFileError: The text is not a call of a known query with constants.
            SiteUnreachableError: The site did not respond.
        """
        try:
            expression = ast.parse(call.strip(), mode="eval").body
            if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Name):
                raise ValueError("not a call")
            given = [
                node
                for node in expression.args
                if not (isinstance(node, ast.Name) and node.id in ("__page__", "page"))
            ]
            constants = [str(ast.literal_eval(node)) for node in given]
            # The agent's address may contain quotes, so it is inserted after parsing.
            arguments = [text.replace(LAST_URL, self._last_url) for text in constants]
            query = self._known[expression.func.id]
            signature(query).bind(*arguments)
        except (SyntaxError, ValueError, TypeError, KeyError) as wrong:
            raise TaskFileError(
                f"'{call[:200]}' is not a call of {', '.join(self._known)} with constants"
            ) from wrong
        return await query(*arguments)

    async def _latest_order_url(self) -> str:
        """Return the page of the newest order. Empty if the shop has no orders."""
        search = "searchCriteria[sortOrders][0][field]=created_at&searchCriteria[sortOrders][0][direction]=DESC&searchCriteria[pageSize]=1"
        orders = (await self._ask(f"/rest/V1/orders?{search}"))["items"]
        if not orders:
            return ""
        return f"{self._shop}/sales/order/view/order_id/{int(orders[0]['increment_id'])}/"

    async def _latest_review_author(self, sku: str) -> str:
        reviews = await self._ask(f"/rest/V1/products/{sku}/reviews")
        return str(reviews[-1]["nickname"]) if reviews else ""

    async def _latest_review_rating(self, sku: str) -> str:
        reviews = await self._ask(f"/rest/V1/products/{sku}/reviews")
        return str(reviews[-1]["ratings"][0]["percent"]) if reviews else ""

    async def _post_url(self, url: str) -> str:
        address = urlsplit(url)
        parts = address.path.split("/")
        if len(parts) < 4 or parts[1] != "f":
            return url
        return f"{address.scheme}://{address.netloc}/f/{parts[2]}/{parts[3]}/"

    async def _member_role(self, name: str) -> str:
        return str(await self._window.page.evaluate(_MEMBER_ROLE, name))

    async def _query_text(self, selector: str) -> str:
        return str(
            await self._window.page.evaluate(
                "selector => document.querySelector(selector)?.outerText ?? ''", selector
            )
        )

    async def _ask(self, path: str) -> Any:
        """Request a path of the shop's REST interface as its administrator."""
        # Fetch from a page of the shop, so the request takes the same route as the agent's.
        try:
            async with self._window.page_for_judging() as page:
                await page.goto(f"{self._shop}/rest/V1/")
                return await page.evaluate(_ASK, [_ADMIN, path])
        except Error as fault:
            raise SiteUnreachableError(
                f"{self._shop}{path} did not answer: {fault.message[:200]}"
            ) from fault
