"""Pages of the site that stand elsewhere or are generated: the README's start, policies, commands.

mkdocs calls these hooks (``mkdocs.yml``); nothing generated lies in the repository.
"""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.docs.notebooks import as_markdown, notebooks

ROOT = Path(__file__).parents[2]
WEB = "https://github.com/gnn-repair/gnn-repair/blob/main"
COPIED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site that are files of the repository's root."""
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):<code>~?(?:[\w.]*\.)?(\w+)</code>")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files below docs."""
    for page, source in COPIED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text)))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    for path in notebooks():
        page = f"tutorials/{path.stem}.md"
        files.append(File.generated(config, page, content=as_markdown(path)))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw themselves; names in docstrings without roles."""
    return _ROLE.sub(r"<code>\1</code>", _FORMULA.sub(_mathml, html))


def _mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    text = unescape(match[2].strip())
    block = text.startswith(r"\[")
    formula = str(convert(text[2:-2].strip(), display="block" if block else "inline"))
    # On a telephone a long formula scrolls by itself; without this the whole page would.
    return f'<div style="overflow-x: auto">{formula}</div>' if block else formula


def _relinked(text: str) -> str:
    """Links of a root file as seen from the site's root."""
    return _LINK.sub(lambda match: f"{match[1]}{_target(match[2])}{match[3]}", text)


def _target(link: str) -> str:
    inside = link.removeprefix(f"{WEB}/")
    if inside == link and "://" in link:
        return link
    pages = {source: page for page, source in COPIED.items()}
    if inside in pages:
        return pages[inside]
    if inside.startswith("docs/"):
        return inside.removeprefix("docs/").replace(".ipynb", ".md")
    return f"{WEB}/{inside}"


def commands() -> str:
    """The reference of the command line, from the commands themselves."""
    from typer.main import get_command

    from gnn_repair.cli import app

    lines = ["# Command line", ""]
    lines += _command(get_command(app), "gnn-repair", depth=2)
    return "\n".join(lines)


def _command(command: Any, name: str, depth: int) -> list[str]:
    lines = [f"{'#' * depth} `{name}`", "", *_sentences(command.help or ""), ""]
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        lines += ["| option | what | default |", "|---|---|---|", *rows, ""]
    children = getattr(command, "commands", {})
    for child in map(children.get, command.list_commands(None) if children else ()):
        lines += _command(child, f"{name} {child.name}", min(depth + 1, 4))
    return lines


def _sentences(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    text = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    default = parameter.default
    if callable(default) or default is None or default is False or default == ():
        return f"| {names} | {text} | |"
    return f"| {names} | {text} | `{getattr(default, 'value', default)}` |"
