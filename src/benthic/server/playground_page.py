"""The playground: a page at / that talks to the routes beside it, made of the static files in `playground/`.

The files are read once, when the application is made, so a request can only name one of them. They load nothing from
anywhere else, and the policy sent with each of them has the browser see to that.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "playground"
PREFIX = "/playground/"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Asked for anew each time and answered with 304 while it is the same: a page is never of two versions.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str


def is_page_path(path: str) -> bool:
    """Whether the path is the playground's; its files hold no secret and are served without a key."""
    return path == "/" or path.startswith(PREFIX)


def add_playground(app: FastAPI) -> None:
    """Adds the page at / and its files under /playground/."""
    files = read_files(FOLDER)

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _send(files["index.html"], request)

    @app.head(PREFIX + "{name:path}", include_in_schema=False)
    @app.get(PREFIX + "{name:path}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404)
        return _send(files[name], request)


def read_files(folder: Path) -> dict[str, PageFile]:
    """All files of a folder and the folders in it that a browser may ask for, by their path in it."""
    return {
        path.relative_to(folder).as_posix(): _read(path) for path in sorted(folder.rglob("*")) if path.suffix in _TYPES
    }


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    return PageFile(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _send(file: PageFile, request: Request) -> Response:
    headers = {**_HEADERS, "etag": file.etag}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
