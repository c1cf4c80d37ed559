"""The viewer's web application.

Every view has an address. Apart from the index, the open episodes and the running players, no state
is kept between requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboards import figure_pages, pages, play_pages
from dashboards.filters import MAX_NUMBER, FilterError
from dashboards.index import Index
from dashboards.links import Links
from dashboards.live_episode import ReplayError
from dashboards.players import Players
from dashboards.templating import NotFoundError
from dashboards.templating import problem as problem_page
from environments.errors import EnvironmentCallError, RefusedError
from tasks.provision.errors import ProvisionError
from tasks.provision.login_gate import LoginGate

log = logging.getLogger(__name__)

REFRESH_SECONDS = 3.0
HEADERS = {
    # The templates escape the texts of environments and models. If one is not escaped, the browser
    # still does not run its scripts.
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    b"connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors "
    b"'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
"""Security headers. Plotly sets inline styles, hence 'unsafe-inline' for styles only."""


class BoundedInteger(IntegerConvertor):
    """Integers in paths. Numbers with too many digits match no route."""

    regex = f"[0-9]{{1,{len(str(MAX_NUMBER)) - 1}}}"


register_url_convertor("int", BoundedInteger())


class SameOriginOnly:
    """Reject state-changing requests that do not come from the viewer's own pages (CSRF)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
            headers = Headers(scope=scope)
            if headers.get("origin") != f"{scope['scheme']}://{headers.get('host')}":
                await PlainTextResponse(
                    "Requests that change something must come from the viewer's own pages.", 403
                )(scope, receive, send)
                return
        await self._app(scope, receive, send)


class SecurityHeaders:
    """Add HEADERS to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        await self._app(scope, receive, with_headers)


def application(runs: Path, links: Links, hosts: list[str], login: str) -> Starlette:
    """Create the application.

    Args:
        links: Addresses of MLflow and Prefect.
        hosts: Accepted host names. Other names are rejected, which prevents DNS rebinding.
        login: Login of the viewer, as "user:password".
    """
    index, players = Index(runs), Players()

    async def refresh_index() -> None:
        while True:
            try:
                await run_in_threadpool(index.refresh)
            except Exception:
                log.exception(
                    "the index could not be updated; the next try is in %g s", REFRESH_SECONDS
                )
            await asyncio.sleep(REFRESH_SECONDS)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        following = asyncio.create_task(refresh_index())
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            await players.close()
            index.close()

    app = Starlette(
        routes=[
            *(
                Route(path, _with_error_pages(answer), methods=[method])
                for method, path, answer in play_pages.ROUTES
            ),
            *(Route(path, _page(answer)) for path, answer in (*figure_pages.ROUTES, *pages.ROUTES)),
            Route("/health", _health),
            Mount("/static", StaticFiles(packages=[("dashboards", "static")])),
        ],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(LoginGate, login=login, realm="make up"),
            Middleware(SameOriginOnly),
        ],
        lifespan=lifespan,
    )
    app.state.index = index
    app.state.links = links
    app.state.players = players
    app.state.episodes = {}
    return app


def _page(answer: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Run a handler that reads files in a thread."""
    return _with_error_pages(lambda request: run_in_threadpool(answer, request))


def _with_error_pages(
    answer: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Turn errors of an address or of an environment server into error pages."""

    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except FilterError as problem:
            return problem_page(request, str(problem), 400, problem.field)
        except NotFoundError as problem:
            return problem_page(request, str(problem), 404)
        except RefusedError as problem:  # e.g. an unknown task
            return problem_page(request, str(problem), 400)
        except (EnvironmentCallError, ProvisionError, ReplayError) as problem:
            return problem_page(request, f"{type(problem).__name__}: {problem}", 502)

    return answered


async def _health(_: Request) -> Response:
    """Report that the viewer is running."""
    return PlainTextResponse("up")
