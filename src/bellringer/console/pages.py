"""Renders pages: one template environment, the static files under names that change with them, the headers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from http import HTTPStatus
from importlib import resources
from pathlib import PurePath
from typing import Any

import jinja2
import msgspec
from litestar import MediaType, Request, Response
from litestar.datastructures import Cookie
from litestar.response import Redirect
from litestar.status_codes import HTTP_303_SEE_OTHER

from bellringer import __version__
from bellringer.console import formats
from bellringer.console.plot import HEIGHT, WIDTH
from bellringer.console.snapshot import PAGE_SIZE
from bellringer.console.task_words import call_words, interval_words, schedule_words, schedule_zone
from bellringer.edge.model import Environment
from bellringer.edge.problems import Problem
from bellringer.kernel.clock import Clock
from bellringer.kernel.errors import NotFound, Unavailable

STATIC_PATH = "/console/static"

# No inline script or style anywhere, nothing from elsewhere, in nobody's frame. The referrer stays within the site:
# with none at all browsers would send `Origin: null` with our own forms.
PAGE_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
# The sender's HTML may style itself and hold its pictures inside; it runs nothing, loads nothing and goes nowhere.
MAIL_HEADERS: Mapping[str, str] = {
    **PAGE_HEADERS,
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'; sandbox",
    "referrer-policy": "no-referrer",
}

_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """A static file; `version` changes with its content."""

    content: bytes
    media_type: str
    version: str


class Pages:
    """Turns templates into text and responses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._assets = _read_assets()
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("bellringer.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= {
            "after": formats.after,
            "amount": formats.amount,
            "absolute": formats.absolute,
            "as_json": formats.as_json,
            "call_words": call_words,
            "clock": formats.clock,
            "coarse": formats.coarse,
            "day": formats.day,
            "duration": formats.duration,
            "exact": formats.exact,
            "instant": formats.instant,
            "interval_words": interval_words,
            "marked": formats.marked,
            "moment": formats.moment,
            "number": formats.number,
            "ordinal": formats.ordinal,
            "pretty_json": formats.pretty_json,
            "rate": formats.rate,
            "schedule_words": schedule_words,
            "schedule_zone": schedule_zone,
            "segments": formats.segments,
            "size": formats.size,
            "span": formats.span,
            "took": formats.took,
            "when": formats.when,
        }
        self._templates.globals |= {
            "asset": self.asset_url,
            "page_size": PAGE_SIZE,
            "plot_height": HEIGHT,
            "plot_width": WIDTH,
            "version": __version__,
        }

    def asset(self, version: str, name: str) -> Asset:
        """A static file. Raises `NotFound`, also for a version that is not the current one."""
        found = self._assets.get(name)
        if found is None or found.version != version:
            raise NotFound(f"there is no file {name}")
        return found

    def asset_url(self, name: str) -> str:
        """Where a static file is, for as long as it is what it is now."""
        return f"{STATIC_PATH}/{self._assets[name].version}/{name}"

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """The text of a template. `now` is the moment that its times are relative to."""
        return self._templates.get_template(template).render({"now": self._clock.now(), **values})

    def page(
        self,
        template: str,
        *,
        environment: Environment | None = None,
        status: int = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
        **values: Any,  # noqa: ANN401 - whatever the template shows
    ) -> Response[str]:
        """A page; with an environment it has the navigation of those who are signed in."""
        return Response(
            self.render(template, {"environment": environment, **values}),
            status_code=status,
            media_type=MediaType.HTML,
            headers={**PAGE_HEADERS, **(headers or {})},
        )

    def error_page(self, problem: Problem, environment: Environment | None = None) -> Response[str]:
        """What went wrong, for a person."""
        headers = {}
        if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers["retry-after"] = str(Unavailable.retry_after_seconds)
        return self.page("error.html", environment=environment, status=problem.status, headers=headers, problem=problem)


def base_url(request: Request[Any, Any, Any]) -> str:
    """Where the reader found us, for commands to paste."""
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    return f"{'https' if scheme == 'https' else 'http'}://{request.headers.get('host', 'localhost')}"


def redirect(path: str, *cookies: Cookie) -> Redirect:
    """Send the browser to another page of ours, with GET."""
    return Redirect(path, status_code=HTTP_303_SEE_OTHER, headers=dict(PAGE_HEADERS), cookies=cookies)


def _read_assets() -> dict[str, Asset]:
    assets = {}
    for file in resources.files("bellringer.console").joinpath("static").iterdir():
        content = file.read_bytes()
        assets[file.name] = Asset(
            content=content,
            media_type=_MEDIA_TYPES[PurePath(file.name).suffix],
            version=hashlib.sha256(content).hexdigest()[:12],
        )
    return assets
