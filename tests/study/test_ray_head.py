"""A cluster that is not there, and one whose head is killed in the middle of a study."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnn_repair.errors import InputError, ResourceError
from gnn_repair.study import PAPER, RayEngine, Store
from gnn_repair.study.engine import ClusterHead, answers

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
ray = pytest.importorskip("ray")
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}"])
def test_a_dead_address_is_said_before_ray_is_asked(monkeypatch, closed_port, form):
    """Ray itself would wait for a quarter of an hour."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    engine = RayEngine(form.format(closed_port))
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was asked"))
    with pytest.raises(InputError, match=r"no Ray cluster answers at .*ray start --head"):
        list(engine.map(print, [1]))


def test_the_environment_s_address_counts(monkeypatch, closed_port):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    engine = RayEngine()
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was asked"))
    with pytest.raises(InputError, match="no Ray cluster answers"):
        list(engine.map(print, [1]))


def test_something_else_at_the_address_is_said(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr("gnn_repair.study.engine.CONNECT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine = RayEngine(f"127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(ray, "init", lambda **options: time.sleep(60))
        with pytest.raises(InputError, match="is no Ray cluster, or a stuck one"):
            list(engine.map(print, [1]))


def test_a_silent_head_is_gone_after_its_patience(closed_port):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = listener.getsockname()[:2]
        assert answers(here, 1.0)
        ClusterHead(here, patience=0.0).check()
    head = ClusterHead(("127.0.0.1", closed_port), patience=0.0)
    with pytest.raises(ResourceError, match="is gone; start it and run the same command again"):
        head.check()
    assert head.gone
    ClusterHead(None).check()


STUDY = """
import sys, time
import gnn_repair.study.grid as grid
from gnn_repair.cli import main
from tests.helpers.study.planted_records import fake_case

def work(shared, case, tell):
    import time
    if case.backbone != "gcn":
        time.sleep(600)
    from tests.helpers.study.planted_records import fake_case
    return fake_case(shared, case, tell)

grid.run_case = work
sys.argv = ["gnn-repair", "study", "run", "--store", {store!r}, "--engine", "ray", "--datasets"]
sys.argv += ["builtin", "--backbones", "gcn,sgc", "--splits", "0-1", "--address", {address!r}]
main()
"""


@pytest.mark.skipif(
    not os.environ.get("GNN_REPAIR_LONG"), reason="takes half a minute; GNN_REPAIR_LONG=1 runs it"
)
def test_a_killed_head_ends_the_study_with_a_sentence_and_keeps_the_records(tmp_path):
    from ray.cluster_utils import Cluster

    environment = {**os.environ, "PYTHONPATH": ROOT}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    before = dict(os.environ)
    os.environ.update(environment)
    memory = 80 * 1024 * 1024
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": memory}
    )
    try:
        store = tmp_path / "store"
        code = STUDY.format(store=str(store), address=cluster.address)
        study = subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment
        )
        deadline = time.monotonic() + 120
        while len(list(store.rglob("split-*.json"))) < 2:
            assert time.monotonic() < deadline
            assert study.poll() is None, study.communicate()
            time.sleep(0.1)
        for process in cluster.head_node.all_processes["gcs_server"]:
            os.kill(process.process.pid, signal.SIGKILL)
        said = study.communicate(timeout=120)[1]
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
    assert study.returncode == 1, said
    assert "gnn-repair: the head of the Ray cluster at 127.0.0.1:" in said
    assert "what is stored is kept" in said
    assert "Traceback" not in said
    assert len(list(Store(store).records(PAPER.digest))) == 2
    assert list(store.rglob("*.failed.json")) == []
