"""Signing in and out: the API key itself is the session, in a cookie that scripts cannot read.

There is nothing to store or to expire on the server: a key that is revoked ends every session it opened.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import quote

from litestar import Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.exceptions import PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from bellringer.console.pages import Pages, redirect
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment, Scope
from bellringer.kernel.errors import NotAllowed, NotAuthenticated, Unavailable

AnyRequest = Request[Any, Any, Any]
AnyConnection = ASGIConnection[Any, Any, Any, Any]
SignedIn: TypeAlias = NamedDependency[Environment]
"""The parameter `environment` of a page: that of the reader, who is sent to the login page without one."""

HOME = "/console"
LOGIN_PATH = "/console/login"

_COOKIE = "bellringer_key"
_SESSION_SECONDS = 7 * 24 * 3600
# Whole paths of the console and nothing else, so that no `next` leads to another site.
_OWN_PATH = re.compile(r"/console(?:/[A-Za-z0-9._~%:-]+)*(?:\?[A-Za-z0-9._~%&=+:-]*)?")


class SessionEnded(Exception):
    """A page was asked for without a valid key of an administrator."""

    def __init__(self, *, had_key: bool) -> None:
        super().__init__("a valid key is needed to see this page")
        self.had_key = had_key


class Sessions:
    """Knows who looks at a page."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def environment(self, request: AnyRequest) -> Environment:
        """The environment that the request's cookie opens. Raises `SessionEnded`, `Unavailable`."""
        key = key_of(request)
        if key is None:
            raise SessionEnded(had_key=False)
        try:
            access = await self._keys.authenticate(key)
            access.require(Scope.ADMIN)
        except (NotAuthenticated, NotAllowed):
            raise SessionEnded(had_key=True) from None
        request.state.environment = access.environment  # an error page keeps its navigation
        return access.environment

    async def environment_if_any(self, request: AnyRequest) -> Environment | None:
        """The same for pages that everybody may see: None for who is not signed in, or cannot be known now."""
        try:
            return await self.environment(request)
        except (SessionEnded, Unavailable):
            return None


def key_of(request: AnyRequest) -> str | None:
    """The key in the request's cookie, if there is one. The framework has undone the percent-encoding."""
    return request.cookies.get(_COOKIE) or None


def own_path(path: str | None) -> str:
    """The path to go to after signing in: one of the console's own, whatever was asked for."""
    if path and _OWN_PATH.fullmatch(path) and not path.startswith((LOGIN_PATH, "/console/logout")):
        return path
    return HOME


def to_login(request: AnyRequest) -> Redirect:
    """Send the reader to the login page, and back to where they were afterwards, unless they were about to act."""
    query = request.scope["query_string"].decode("latin-1")
    wanted = own_path(request.scope["path"] + (f"?{query}" if query else "")) if request.method == "GET" else HOME
    return redirect(LOGIN_PATH if wanted == HOME else f"{LOGIN_PATH}?next={quote(wanted, safe='')}")


def session_handlers(keys: Keys, sessions: Sessions, pages: Pages) -> list[ControllerRouterHandler]:
    """Login and logout."""

    def login_page(wanted: str, *, message: str = "", status: int = HTTPStatus.OK) -> Response[str]:
        return pages.page("login.html", status=status, next=wanted, message=message)

    @get(LOGIN_PATH, include_in_schema=False)
    async def show_login(request: AnyRequest) -> Response[Any]:
        wanted = own_path(request.query_params.get("next"))
        try:
            await sessions.environment(request)
        except SessionEnded as ended:
            message = "That key is no longer valid. Sign in with another." if ended.had_key else ""
            return login_page(wanted, message=message)
        return redirect(wanted)

    @post(LOGIN_PATH, include_in_schema=False)
    async def login(request: AnyRequest) -> Response[Any]:
        form = await request.form()
        wanted, key = own_path(str(form.get("next", ""))), str(form.get("key", "")).strip()
        try:
            access = await keys.authenticate(key)
            access.require(Scope.ADMIN)
        except NotAllowed:
            message = "The console opens to admin keys alone, and this key has other scopes."
            return login_page(wanted, message=message, status=HTTPStatus.FORBIDDEN)
        except NotAuthenticated:
            message = "No such key: it is unknown or revoked." if key else "Enter an API key."
            return login_page(wanted, message=message, status=HTTPStatus.UNPROCESSABLE_ENTITY)
        return redirect(wanted, _cookie(request, quote(key, safe=""), _SESSION_SECONDS))

    @post("/console/logout", include_in_schema=False, sync_to_thread=False)
    def logout(request: AnyRequest) -> Response[Any]:
        return redirect(LOGIN_PATH, _cookie(request, "", 0))

    return [show_login, login, logout]


def refuse_other_sites(connection: AnyConnection, _handler: BaseRouteHandler) -> None:
    """Let a form through that one of our own pages sent: a guard of every route. Raises `PermissionDeniedException`.

    Browsers say where a POST comes from: in Sec-Fetch-Site, or over plain HTTP in Origin. A client that says neither
    is no browser, and nobody can make it send somebody else's cookie.
    """
    if isinstance(connection, Request) and connection.method in {"GET", "HEAD"}:
        return
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    if site is not None:
        is_ours = site in {"same-origin", "none"}
    else:
        is_ours = origin is None or origin.partition("://")[2] == connection.headers.get("host")
    if not is_ours:
        raise PermissionDeniedException("this form was sent by another site")


def _cookie(request: AnyRequest, value: str, max_age_seconds: int) -> Cookie:
    # A proxy that ends TLS tells us so; a client that lies about it only keeps its own cookie from plain HTTP.
    is_https = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    return Cookie(
        key=_COOKIE,
        value=value,
        path="/",
        max_age=max_age_seconds,
        httponly=True,
        samesite="strict",
        secure=is_https,
    )
