"""Bad command lines: one sentence and exit code 2, or 1 where the world is at fault.

Most run in this process, a few as processes of their own. Nothing may be left behind by any.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from gnn_repair.cli.main import app
from gnn_repair.cli.study import app as study_commands
from gnn_repair.results.store import pack
from gnn_repair.study import PAPER
from tests.helpers.study.planted_records import make_record, stored

LONG = "x" * 5000
DEEP = "[" * 5000 + "]" * 5000
SETTINGS = [
    "backbones.hidden=nan", "backbones.hidden=1e3", "backbones.hidden=99999999999999999999",
    "backbones.hidden=", "backbones.hidden=none", "backbones.hidden=true", "backbones.dropout='x'",
    "backbones.short=3", "backbones.short.learning_rate=nan", "backbones.short.decoupled=maybe",
    "backbones.short.nothing=1", "repairs.=3", "repairs", "=3", "", ".=1",
    "a.b.c.d.e.f.g.h.i.j=1", "batches.sizes=4", "batches.sizes.cora=nan",
    "batches.backbones=[1,2]", "version=x", f"backbones.hidden={DEEP}",
    f"{LONG}=1", f"backbones.hidden={LONG}", "backbones.hidden=1\n2", "é=1",
]  # fmt: skip
SPLITS = [
    "", ",", "x", "-1", "0-", "-", "5-2", "0-99999999999", "0-9999999", "99", "0,99", "1.5", "1e3",
    "nan", "٣", "0;1", "0-1-2", " ", "0x1", "1_0", LONG, "9" * 400,
]  # fmt: skip
NAMES = ["", ",", "../x", "/etc", "corra", "é", "a b", "cora,,gcn", "NaN", LONG, "-", ".", "cora\0"]
DIGESTS = ["zzz", "0" * 12, "", "../..", LONG, "44136FA355B3"]
DEVICES = ["tpu", "", "meta", "cuda:99", "cpu:x", "mps", LONG, "cuda:-1"]


def study(name, *rest):
    return ["study", name, "--store", "{store}", *rest]


ROOTS = ["{file}", "", "~nosuchuser/data", LONG, "nul\0"]
RAY, NOBODY = ["--engine", "ray"], "127.0.0.1:1"
SMALL = ["--datasets", "builtin", "--backbones", "gcn", "--splits", "0"]
REPORTS = [
    ["--split", "99"], ["--device", "tpu"], ["--methods", "magic"], ["--methods", ""],
    ["--dataset", "corra"], ["--dataset", "../x"], ["--backbone", "gaat"],
    ["--dataset", "cora", "--root", "{file}"], ["--figures", "{file}"], ["--store", "{absent}"],
    ["--store", "{folder}"], ["--store", "{file}"], ["--store", "{sparse}"],
    ["--store", "{store}", "--dataset", "nothing"], ["--store", "{store}", "--figures", "{new}"],
]  # fmt: skip
LINES: list[list[str]] = [
    *(study("run", *SMALL, "--set", one) for one in SETTINGS),
    *(study("run", "--datasets", "builtin", "--splits", one) for one in SPLITS),
    *(study("run", "--datasets", one, "--backbones", "gcn") for one in NAMES),
    *(study("run", "--datasets", "builtin", "--backbones", one) for one in NAMES),
    *(study("run", *SMALL, "--methods", one) for one in NAMES),
    *(study("run", *SMALL, "--device", one) for one in DEVICES),
    *(study("tables", "--digest", one) for one in DIGESTS if one),
    *(study("export", "{new}.csv", "--digest", one) for one in DIGESTS),
    *(study("pack", "{new}.jsonl", "--digest", one) for one in DIGESTS),
    *(["report", "--store", "{store}", "--out", "{new}.html", "--digest", d] for d in DIGESTS),
    *(study("tables", one) for one in ["nonsense", "", LONG, "controls\0"]),
    study("tables", "--format", "pdf"),
    study("status", "--format", "xml"),
    study("status", "--splits", "5-2"),
    *(study("run", *SMALL, "--stack", one) for one in ["0", "x"]),
    *(study("run", *SMALL, "--jobs", *rest) for rest in [["0"], ["2", "--engine", "ray"]]),
    study("run", *SMALL, "--engine", "slurm"),
    *(study("run", *SMALL, *RAY, "--cpus", one) for one in ["nan", "inf", "-1", "0"]),
    study("run", *SMALL, *RAY, "--gpus", "nan"),
    *(study("run", *SMALL, *RAY, "--address", one) for one in ["", NOBODY, f"ray://{NOBODY}"]),
    study("run", *SMALL, "--nonsense"),
    *(study("run", *SMALL, "--protocol", one) for one in ["{absent}", "{folder}", "{deep}"]),
    *(study("run", *SMALL, "--protocol", one) for one in ["{binary}", "{big}", LONG, "nul\0"]),
    *(study("run", "--datasets", "cora", "--root", one) for one in ROOTS),
    *(["study", "run", *SMALL, "--store", s] for s in ["{file}", LONG, "nul\0", "{file}/below"]),
    *(["study", "tables", "--store", s] for s in ["{file}", "{absent}", LONG, "{folder}", "nul\0"]),
    *(["study", "tables", "--store", s] for s in ["{sparse}", "{binary}", "{deep}", "{newer}"]),
    *(["study", "status", "--store", s] for s in ["{file}", LONG, "{sparse}", "{newer}"]),
    *(["study", "export", "{new}.csv", "--store", s] for s in ["{absent}", LONG, "{file}"]),
    ["study", "export", "{new}.csv", "--store", "{folder}"],
    *(["study", "pack", "{new}.jsonl", "--store", s] for s in ["{absent}", "{folder}", "{file}"]),
    *(["study", "merge", s, "--store", "{new}"] for s in ["{absent}", "{file}", LONG, "{sparse}"]),
    ["study", "merge", "--store", "{new}"],
    ["study", "merge", "{packed}", "--store", "{file}"],
    *(study("export", f) for f in ["{folder}.csv", "x.xls", "", LONG + ".csv", "nul\0.csv", "x"]),
    *(study("export", one) for one in ["{file}/below/x.csv", "/dev/null"]),
    *(study("pack", one) for one in ["{folder}", "/dev/null", "{file}/below/x.jsonl"]),
    study("export"),
    *(["report", "--out", one] for one in ["{folder}", "/dev/null", LONG, "nul\0"]),
    *(["report", "--split", one] for one in ["-1", "x"]),
    *(["report", *rest, "--out", "{new}.html"] for rest in REPORTS),
    ["demo", "--report", "{folder}"],
    ["demo", "--store", "{file}", "--report", "{new}.html"],
    ["demo", "--format", "xml"],
    *(["data", "list", "--root", one] for one in ["{file}", "~nosuchuser", LONG, ""]),
    ["data", "list", "--format", "yaml"],
    *(["data", "check", one] for one in ["corra", "", LONG]),
    ["data", "check", "cora", "--root", "{file}"],
    ["data", "nonsense"],
    *([name, *rest] for name in ("bench", "selftest") for rest in ([], ["--help"], ["oracle"])),
    ["nonsense"],
    ["--nonsense"],
    ["study", "nonsense"],
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """What the lines name: files and folders of every awkward kind."""
    home = tmp_path_factory.mktemp("places")
    records = (make_record(dataset, "gcn", 0) for dataset in ("cora", "pubmed"))
    pack(stored(home / "store", *records).root, home / "packed.jsonl")
    (home / "folder").mkdir()
    (home / "folder.csv").mkdir()
    (home / "file").write_text("some text\n")
    (home / "deep.toml").write_text("a = " + DEEP)
    (home / "binary").write_bytes(bytes(range(256)))
    (home / "big.toml").write_text("#" * (2**20 + 1))
    (home / "newer").write_text('{"format": "gnn-repair study", "version": 9}\n')
    with (home / "sparse").open("wb") as file:
        file.truncate(30 * 2**30)
    names = {name: home / name for name in ("store", "folder", "file", "binary", "sparse", "newer")}
    names |= {"deep": home / "deep.toml", "big": home / "big.toml", "packed": home / "packed.jsonl"}
    return {**names, "absent": home / "absent", "new": home / "new"}


def filled(line, places):
    return [part.format(**places) if "{" in part[:1] else part for part in line]


def snapshot(places):
    home = places["store"].parent
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*"))


def judge(code, out, err, line):
    shown = " ".join(line)[:200]
    assert code in (1, 2), f"{shown}: exit code {code}\n{out[-500:]}{err[-500:]}"
    assert "Traceback" not in err + out, f"{shown}: {err[-2000:]}"
    assert "unexpected" not in err, f"{shown}: {err}"
    assert err.strip(), f"{shown}: silent"
    assert len(err) < 3000, f"{shown}: {len(err)} characters"
    said = [text for text in err.splitlines() if text.startswith("gnn-repair: ")]
    assert len(said) == 1 or "Usage: " in err, f"{shown}: {err}"
    assert "Value error" not in err


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line)[:60].replace("\0", "0"))
def test_a_bad_line_is_one_sentence(line, places, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = snapshot(places)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judge(*run(*filled(line, places)), line)
    assert snapshot(places) == before, "something was written"
    assert list(tmp_path.iterdir()) == []


DIAGNOSE, OTHER, TWICE = ["diagnose", "m.py:x"], "holds something else", "named twice"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([*DIAGNOSE, "--csv", "{file}"], OTHER),
        ([*DIAGNOSE, "--report", "{file}"], OTHER),
        ([*DIAGNOSE, "--csv", "{new}", "--report", "{new}"], TWICE),
        ([*DIAGNOSE, "--csv", "{new}", "--report", "{folder}/../new"], TWICE),
        ([*DIAGNOSE, "--csv", "{absent}/rows.csv"], "there is no folder"),
        ([*DIAGNOSE, "--csv", "-"], "name a file"),
        (["check", "m.py:x", "--save", "--baseline", "{file}"], OTHER),
        (["demo", "--report", "{file}"], OTHER),
        (["demo", "--report", "{new}", "--store", "{new}"], TWICE),
        (["report", "--out", "{packed}"], OTHER),
        (["report", "--out", "{new}", "--figures", "{new}"], TWICE),
        (["view", "{store}", "--out", "{packed}"], OTHER),
        (["study", "pack", "{packed}", "--store", "{packed}"], TWICE),
        (study("pack", "{file}"), OTHER),
        (study("export", "{file}"), OTHER),
    ],
)
def test_an_output_takes_the_place_of_its_like_alone(line, said, places, run):
    before = {path: path.read_bytes() for path in (places["file"], places["packed"])}
    code, _, err = run(*filled(line, places))
    assert code == 2 and said in err
    assert before == {path: path.read_bytes() for path in before}


STORED, OWN = ["report", "--store", "{store}"], ["report", "m.py:x"]
GIVEN = {
    "store": "x", "dataset": "cora", "backbone": "gcn", "split": "0", "methods": "paper",
    "figures": "x", "node": "0", "compare": "1", "digest": "x", "device": "cpu", "root": "x",
    "out": "x.html", "tolerance": "1", "format": "json", "protocol": "paper", "set": "x=1",
    "address": "x", "cpus": "1", "gpus": "1",
}  # fmt: skip
"""Options that other forms of a command take."""


@pytest.mark.parametrize(
    ("line", "idle", "said"),
    [
        (OWN, "store dataset backbone split methods figures node compare digest device root",
         "with a model of your own"),
        (["view", "page.html"], "dataset backbone split compare digest device root out",
         "with a page that is written"),
        (STORED, "split methods figures compare device root parts", "name one case"),
        (["view", "{store}"], "split compare device root", "name one case"),
        (["report"], "node", "without --figures"),
        (["report"], "digest", "without --store"),
        (["check", "m.py:x", "--baseline", "b", "--save"], "tolerance format", "with --save"),
        (study("tables", "--digest", "x"), "protocol set", "with --digest"),
        (study("run", *SMALL), "address cpus gpus", "without --engine ray"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else None,
)  # fmt: skip
def test_an_option_without_effect_is_refused(line, idle, said, places, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in idle.split():
        option = [f"--{name}", *([GIVEN[name]] if name in GIVEN else [])]
        code, _, err = run(*filled([*line, *option], places))
        assert code == 2 and f"--{name} has no effect" in err and said in err, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "target"), [("bench", "bench"), ("selftest", "campaign")])
def test_a_command_that_left_says_where_it_went(run, name, target):
    code, _, err = run(name, "--minutes", "3")
    assert code == 2 and f"make {target}" in err


def test_the_help_begins_with_what_a_user_needs(run):
    listed = re.findall(r"^\W*([a-z]+)  ", run("--help")[1], re.M)
    order = ["demo", "report", "view", "study", "data", "check", "doctor"]
    assert [name for name in listed if name in order] == order
    assert not {"bench", "selftest"} & set(listed)
    for group in (app, study_commands):
        helps = [command.help for command in group.registered_commands if not command.hidden]
        assert helps and not any("\n" in part for help in helps for part in help.split("\n\n"))


def call(line, **options):
    """A process of its own."""
    command = [sys.executable, "-m", "gnn_repair", *line]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_a_full_disk_is_exit_code_1(places, tmp_path):
    """A limit on the size of files stands for a full disk."""

    def little():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    line = study("export", "all.csv")
    done = call(filled(line, places), cwd=tmp_path, preexec_fn=little)
    judge(done.returncode, done.stdout, done.stderr, line)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "make room, then run again" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize(
    "line",
    [
        study("export", "{new}.csv"),
        study("pack", "{new}.jsonl"),
        ["report", "--store", "{store}", "--out", "{new}.html"],
    ],
)
def test_a_disk_that_fills_at_the_last_moment(places, run, monkeypatch, line, number):
    def full(self, target):
        raise OSError(number, os.strerror(number))

    before = snapshot(places)
    monkeypatch.setattr(Path, "replace", full)
    code, _, err = run(*filled(line, places))
    assert code == 1 and "then run again" in err
    assert snapshot(places) == before


def test_without_a_home(run, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "GNN_REPAIR_DATA", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    code, _, err = run("data", "list")
    assert code == 2 and "This user has no home folder; set GNN_REPAIR_DATA" in err


def test_a_folder_that_cannot_be_read(places, run, monkeypatch):
    """This user may read anything, so the system's refusal is planted."""
    held, refused = Path.iterdir, places["store"] / PAPER.digest / "cora"

    def refuse(self):
        if self == refused:
            raise PermissionError(errno.EACCES, "Permission denied")
        return held(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.warns(UserWarning, match="cora: it cannot be read"):
        code, out, _ = run(*filled(study("tables", "controls"), places))
    assert code == 0 and "Frozen" in out


def test_a_terminal_without_letters_still_shows_tables(places):
    ascii_alone = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = call(filled(study("tables", "controls"), places), env=ascii_alone)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Frozen" in done.stdout


def test_an_unexpected_fault_is_one_sentence_and_a_traceback_on_demand(run, monkeypatch):
    def fail(*arguments, **options):
        raise KeyError("a planted fault")

    monkeypatch.setattr("gnn_repair.cli.data.data_root", fail)
    code, _, err = run("data", "list")
    assert code == 1
    assert "unexpected KeyError: 'a planted fault'; this is a fault of gnn-repair" in err
    assert err.count("\n") == 1
    with pytest.raises(KeyError):
        run("--debug", "data", "list")
