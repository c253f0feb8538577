"""A page and its parts on this machine: a server that knows these files and no others."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from gnn_repair.errors import InputError
from gnn_repair.reporting.payload import PART_NAME, listed_parts, parts_folder


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


class _Handler(SimpleHTTPRequestHandler):
    """Answers for the page itself and for its parts by name; nothing else is looked up."""

    def __init__(self, page: Path, *arguments: Any) -> None:
        self.page = page
        super().__init__(*arguments, directory=str(page.parent))

    def send_head(self) -> Any:
        # A foreign site that points its name at this machine is not answered.
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        asked = unquote(urlsplit(self.path).path).removeprefix("/") or self.page.name
        folder, _, name = asked.rpartition("/")
        part = folder == parts_folder(self.page).name and PART_NAME.fullmatch(name)
        if host not in ("127.0.0.1", "localhost") or not (part or asked == self.page.name):
            self.send_error(404)
            return None
        self.path = f"/{quote(asked)}"
        return super().send_head()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet: the command has said where the page is."""
