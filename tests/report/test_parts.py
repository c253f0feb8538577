"""Large pages: terms in files beside the page, served to this machine alone."""

from __future__ import annotations

import http.client
import json
import re
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

from gnn_repair.cli import app
from gnn_repair.errors import InputError
from gnn_repair.reporting import gather, report
from gnn_repair.reporting.payload import PageServer, needs_server, parts_folder
from tests.helpers.report.browser import missing
from tests.helpers.report.pages import decoded, payload_of
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

REPAIRS = {"reweighting": Tilted(), "set_translation": Moved()}
needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    exposure, y = make_exposure(groups=2, nodes=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnn_repair.reporting.payload.PART_BYTES", 900)
        path = tmp_path_factory.mktemp("parts") / "big page.html"
        report(exposure, y, path, repairs=REPAIRS, single_file=False)
    whole = report(exposure, y, path.with_name("whole.html"), repairs=REPAIRS)
    return path, whole, gather(exposure, y, repairs=REPAIRS)


@contextmanager
def served(path):
    with PageServer(path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_parts_together_are_the_whole(world):
    path, whole, evidence = world
    split, one = payload_of(path), payload_of(whole)
    assert "parts" not in one and not needs_server(whole)
    assert needs_server(path)
    edges, digest = split["parts"]["edges"], split["parts"]["digest"]
    assert edges[0] == 0 and edges[-1] == len(evidence.nodes) and len(edges) > 4
    folder = parts_folder(path)
    names = [f"{digest}-{k}.json" for k in range(len(edges) - 1)]
    pieces = [json.loads((folder / name).read_text()) for name in names]
    for name in ("rows", "coefficients", "repair_0_coefficients"):
        assert name not in split["arrays"]
        joined = np.concatenate([decoded(piece[name]) for piece in pieces])
        np.testing.assert_array_equal(joined, decoded(one["arrays"][name]))
    table = json.loads((folder / f"{digest}-table.json").read_text())
    assert table["contributions"] == one["arrays"]["contributions"]
    starts = evidence.starts
    for k, piece in enumerate(pieces):
        assert len(decoded(piece["rows"])) == starts[edges[k + 1]] - starts[edges[k]]
    assert "connect-src 'self'" in path.read_text() and "connect-src" not in whole.read_text()


def test_size_decides_and_old_parts_go(tmp_path, monkeypatch):
    exposure, y = make_exposure()
    path, folder = tmp_path / "r.html", tmp_path / "r.parts"
    monkeypatch.setattr("gnn_repair.reporting.writing.SINGLE_BYTES", 1000)
    report(exposure, y, path, single_file=None)
    first = {file.name for file in folder.iterdir()}
    assert len(first) == 2
    (folder / "mine.txt").write_text("not a part")
    other, labels = make_exposure(seed=9)
    report(other, labels, path, single_file=None)
    second = {file.name for file in folder.iterdir()}
    assert "mine.txt" in second and not first & second and len(second) == 3
    (folder / "mine.txt").unlink()
    monkeypatch.setattr("gnn_repair.reporting.writing.SINGLE_BYTES", 10**9)
    report(exposure, y, path, single_file=None)
    assert not folder.exists()
    monkeypatch.setattr("gnn_repair.reporting.writing.SINGLE_BYTES", 1000)
    report(exposure, y, path)
    assert not folder.exists()
    with pytest.raises(InputError, match="give True, False or None"):
        report(exposure, y, path, single_file=3)


def ask(server, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_knows_the_page_and_its_parts_only(world, tmp_path):
    path, _, _ = world
    (path.parent / "secret.json").write_text("{}")
    (parts_folder(path) / "secret.json").write_text("{}")
    name = f"{payload_of(path)['parts']['digest']}-0.json"
    with served(path) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert ask(server, "/") == (200, path.read_bytes())
        assert ask(server, "/big%20page.html")[0] == 200
        assert ask(server, f"/big%20page.parts/{name}")[0] == 200
        for other in (
            "/secret.json", "/big%20page.parts/secret.json", "/whole.html", "/../whole.html",
            f"/big%20page.parts/../{name}", f"/big%20page.parts/%2e%2e/{name}", "//etc/passwd",
            f"/big%20page.parts/{'0' * 12}-0.json",
        ):  # fmt: skip
            assert ask(server, other)[0] == 404, other
        assert ask(server, "/", "evil.example:80")[0] == 404
    with pytest.raises(InputError, match="is no file; name a page"):
        PageServer(tmp_path / "nothing.html")


@needs_browser
def test_a_browser_reads_parts_on_demand(browser, world):
    path, whole, evidence = world
    read = (
        "return [document.querySelector('#certificate').textContent,"
        " document.querySelector('#terms').textContent,"
        " document.querySelector('#plane .hull').getAttribute('points')]"
    )
    expected = {}
    for i in (0, 20, 59):
        browser.open(whole, f"#node={evidence.nodes[i]}")
        expected[i] = browser.run(read)
    with served(path) as server:
        browser.resize(1360)
        browser.driver.get("about:blank")
        browser.requests()
        for i in (0, 20, 59, 0):
            browser.driver.get(f"{server.address}#node={evidence.nodes[i]}")
            browser.until(
                "document.querySelector('#node-head h2')?.textContent === arguments[0]",
                f"Node {evidence.nodes[i]}",
            )
            assert browser.run(read) == expected[i]
        asked = [url for url in browser.requests() if "parts" in url]
        assert all(url.startswith(server.address) for url in asked)
        assert 4 <= len(asked) < 10  # the table once, then one part a range
        assert browser.messages() == []
    browser.open(path, f"#node={evidence.nodes[0]}")  # as a file
    browser.until("document.getElementById('notice-text').textContent.includes('gnn-repair view')")
    browser.messages()


def test_view_opens_a_page_or_writes_that_of_a_store(world, tmp_path, monkeypatch):
    path, whole, _ = world
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    run = CliRunner().invoke(app, ["view", str(whole)])
    assert run.exit_code == 0 and opened == [whole.resolve().as_uri()]
    run = CliRunner().invoke(app, ["view", str(whole), "--no-browser"])
    assert run.output.strip() == whole.resolve().as_uri() and len(opened) == 1
    served_at = []
    monkeypatch.setattr(PageServer, "serve_forever", lambda self: served_at.append(self.address))
    run = CliRunner().invoke(app, ["view", str(path)])
    assert run.exit_code == 0 and opened[1] == served_at[0]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", served_at[0])
    with pytest.raises(InputError, match="is no file"):
        CliRunner().invoke(app, ["view", str(tmp_path / "x.html")], catch_exceptions=False)
