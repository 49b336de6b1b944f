"""GET /: a page to chat with and see what speculation does. Its files are of this package and hold no secret."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.errors import ApiError

PAGE = "/"
FILES = "/playground/"
_FOLDER = files("server.http") / "playground_files"
_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "answer.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "fleet.js": "text/javascript; charset=utf-8",
    "settings.js": "text/javascript; charset=utf-8",
    "tabs.js": "text/javascript; charset=utf-8",
}
_HEADERS = {
    # Nothing from elsewhere, nothing inline: what a model writes could not run even if it became markup.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def is_page(path: str) -> bool:
    """Whether a path is the page's, which is loaded before there is a key."""
    return path == PAGE or path.startswith(FILES)


def playground() -> APIRouter:
    """Raises OSError if the installation lacks the page's files."""
    held = {name: (_FOLDER / name).read_bytes() for name in _TYPES}
    router = APIRouter(include_in_schema=False)

    def answer(name: str) -> Response:
        return Response(held[name], media_type=_TYPES[name], headers=_HEADERS)

    @router.head(PAGE)
    @router.get(PAGE)
    async def page() -> Response:
        return answer("index.html")

    @router.head(FILES + "{name}")
    @router.get(FILES + "{name}")
    async def file(name: str, request: Request) -> Response:
        if name not in held:
            path = request.url.path[:200]
            raise ApiError(f"Invalid URL ({request.method} {path})", status=404, code="not_found")
        return answer(name)

    return router
