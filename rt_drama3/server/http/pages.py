"""The web pages: ``/``, ``/obs``, and their scripts and styles below ``/web``.

The scripts include the browser client, ``clients/web``. A wheel has a copy of it next to our own
files; a clone (an editable install) uses the original.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rt_drama3.errors import ConfigError
from rt_drama3.server.config import ServerConfig

HERE = Path(__file__).parents[1]
CLIENT = "client"  # folder of clients/web/src below /web, in the wheel and in addresses
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src {styles}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # An update must take effect immediately; the files are small and local.
    "Cache-Control": "no-cache",
}


def routes(config: ServerConfig) -> list[BaseRoute]:
    """The routes of the pages; ``/obs`` only if listening is enabled."""
    found: list[BaseRoute] = [Route("/", page), Route("/web/{path:path}", asset)]
    if config.listen:
        found.append(Route("/obs", obs))
    return found


async def page(request: Request) -> Response:
    """``GET /``: speaks a typed sentence."""
    return _page("page.html", styles="'self'")


async def obs(request: Request) -> Response:
    """``GET /obs``: plays what is spoken, with captions; for OBS's browser source.

    OBS inserts its "Custom CSS" as a style element, so inline styles are allowed. Texts become text
    nodes and only our own scripts run, so a style has nothing to leak.
    """
    return _page("obs.html", styles="'self' 'unsafe-inline'")


async def asset(request: Request) -> Response:
    """``GET /web/...``: one of the known files; the path itself is never opened."""
    name = request.path_params["path"]
    path = _assets().get(name)
    if path is None:
        return Response(f"{name[:200]!r} is not found.", 404, HEADERS, "text/plain; charset=utf-8")
    return Response(path.read_bytes(), headers={**HEADERS, "Content-Type": TYPES[path.suffix]})


def _page(name: str, styles: str) -> Response:
    policy = POLICY.format(styles=styles)
    headers = {**HEADERS, "Content-Security-Policy": policy}
    return Response(
        HERE.joinpath("web", name).read_bytes(), headers=headers, media_type="text/html"
    )


@cache
def _assets() -> dict[str, Path]:
    """The files by their path below ``/web``."""
    found = {path.name: path for path in HERE.joinpath("web").iterdir() if path.suffix in TYPES}
    for path in client_folder().iterdir():
        if path.suffix == ".js":
            found[f"{CLIENT}/{path.name}"] = path
    return found


def client_folder() -> Path:
    """The folder of the browser client's modules.

    Raises:
        ConfigError: the installation lacks them.
    """
    packaged = HERE / "web" / CLIENT
    cloned = HERE.parents[1] / "clients" / "web" / "src"
    for folder in (packaged, cloned):
        if folder.joinpath("index.js").is_file():
            return folder
    raise ConfigError(f"the pages' scripts are not in {packaged}; reinstall rt-drama3.")
