"""Pages of the site that are generated: README, policies, tutorials, reference, commands.

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
REFERENCE = {
    "diagnosis": ("Diagnosis", ["diagnose", "Diagnosis"]),
    "exposure": ("Exposure", ["expose", "Exposure"]),
    "links": ("Links", ["expose_links"]),
    "solution": ("Solution", ["solve", "Solution"]),
    "reach": ("Reach and chance", ["reach", "class_reach", "confusion_by_reach", "source_ranking"]),
    "changes": ("Smallest changes", ["nearest_reweighting", "stable_evidence"]),
    "values": ("Values", ["value_range"]),
    "explainer": ("Explainer", ["OracleExplainer"]),
    "repairs": (
        "Repairs",
        ["Reweighting", "SetTranslation", "NodeTranslation", "RefitHead", "CorrectAndSmooth",
         "TemperatureScaling", "CrossFitted", "Budget"],
    ),
    "fitted": ("Fitted repairs", ["FittedRepair"]),
    "ladder": ("Evidence ladder", ["EvidenceLadder"]),
    "repaired": ("Repaired models", ["repaired", "RepairedModel"]),
    "backbones": (
        "Datasets and backbones",
        ["load_dataset", "DATASETS", "train_backbone", "Frozen", "Backbone", "BACKBONES"],
    ),
    "run_study": ("Study", ["run_study", "read_results"]),
    "reports": ("Reports and plots", ["report", "plots"]),
    "baselines": ("Baselines", ["save_baseline", "compare"]),
    "errors": ("Errors", ["GnnRepairError", "InputError", "ExposureRefused"]),
}  # fmt: skip
"""The Python reference: a page per object, with the names of ``gnn_repair`` that it shows."""
BOOST = {"howto": 2.0, "start": 2.0, "changelog.md": 0.2, "results": 0.5, "internals": 0.5}
"""How much search prefers a folder or page."""
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):<code>~?(?:[\w.]*\.)?(\w+)</code>")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_config(config: Any) -> Any:
    """Put the generated reference into the menu."""
    pages = [{title: f"reference/{name}.md"} for name, (title, _) in REFERENCE.items()]
    (section,) = (entry["Reference"] for entry in config.nav if "Reference" in entry)
    section.append({"Python": pages})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files below docs."""
    for page, source in COPIED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text)))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    for name, (title, names) in REFERENCE.items():
        shown = "".join(f"::: gnn_repair.{each}\n\n" for each in names)
        content = f"# {title}\n\n{shown}"
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for path in notebooks():
        page = f"tutorials/{path.stem}.md"
        files.append(File.generated(config, page, content=as_markdown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **site: Any) -> str:
    """Links to tutorials lead to their pages; these offer the notebook; search knows its order."""
    folder, _, name = page.file.src_uri.partition("/")
    page.meta.setdefault("search", {"boost": BOOST.get(folder, 1.0)})
    text = re.sub(r"(\]\([^)\s]*)\.ipynb([)#])", r"\1.md\2", markdown)
    if folder == "tutorials":
        notebook = name.replace(".md", ".ipynb")
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n[Download this notebook]({notebook})\n{rest}"
    return text


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
