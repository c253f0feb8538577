"""A page and its parts on this machine: a server that knows these files and no others."""

from __future__ import annotations

from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gnn_repair.errors import InputError
from gnn_repair.reporting.payload import PART_NAME, listed_parts, parts_folder

TYPES = {".html": "text/html; charset=utf-8", ".json": "application/json"}


def needs_server(page: Path) -> bool:
    """Whether a page's terms lie in files beside it."""
    return any(listed_parts(parts_folder(page)))


class PageServer(ThreadingHTTPServer):
    """Serves one page at ``address`` until it is closed."""

    daemon_threads = True

    def __init__(self, page: Path, port: int = 0) -> None:
        if not page.is_file():
            raise InputError(f"{page} is no file; name a page that gnn-repair report wrote")
        super().__init__(("127.0.0.1", port), partial(_Handler, page))

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers for the page itself and for its parts by name; nothing else is looked up."""

    def __init__(self, page: Path, *arguments: Any) -> None:
        self.page = page
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        # A foreign site that points its name at this machine is not answered.
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        path = self._asked() if host in ("127.0.0.1", "localhost") else None
        if path is None or not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", TYPES[path.suffix])
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _asked(self) -> Path | None:
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        folder = parts_folder(self.page)
        if path in ("", self.page.name):
            return self.page
        first, _, name = path.partition("/")
        return folder / name if first == folder.name and PART_NAME.fullmatch(name) else None

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet: the command has said where the page is."""
