"""The Ray engine on a real cluster of two nodes, one of which dies; clusters that are not there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from gnn_repair.backbones import train_backbone
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError, ResourceError
from gnn_repair.exposure import expose
from gnn_repair.oracle.solver import solve
from gnn_repair.repair import SetTranslation
from gnn_repair.study import (
    PAPER,
    RayEngine,
    Store,
    Watcher,
    override,
    repaired_logits_sharded,
    run_study,
    solve_oracle_sharded,
)
from gnn_repair.study.engine import ClusterHead, Failure, answers
from tests.helpers.study.planted_records import make_record
from tests.helpers.study.tiny import TINY, tiny_graph

# The Ray engine on a real cluster of two nodes on this machine, one of which dies.

# Ray reads this when it is first imported: its ports stay on the loopback address.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
ray = pytest.importorskip("ray")
LONG = pytest.mark.skipif(
    not os.environ.get("GNN_REPAIR_LONG"), reason="takes half a minute; GNN_REPAIR_LONG=1 runs it"
)


ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])]),
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}
NODE = {"num_cpus": 1, "object_store_memory": 80 * 1024 * 1024}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with one core each; one of them where nothing long is run."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300}
    quick |= {"health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    with patch.dict(os.environ, ENVIRONMENT):
        made = Cluster(initialize_head=True, head_node_args=NODE | {"_system_config": quick})
        # Connected while there is only the head: Ray takes any node here, and the second will die.
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        if os.environ.get("GNN_REPAIR_LONG"):
            made.second = made.add_node(**NODE)
            made.wait_for_nodes()
        yield made
        ray.shutdown()
        made.shutdown()


def located(shared, case, tell):
    """A short case that notes where it begins, and whose records say where they were made."""
    import time as clock

    import ray as here

    place = here.get_runtime_context().get_node_id()
    with shared.open("a") as file:
        file.write(f"{case.backbone} {place} {os.getpid()}\n")
    clock.sleep(0.5)
    return [
        make_record(run.dataset, run.backbone, run.split, environment={"node": place})
        for run in case.runs
    ]


@LONG
def test_what_a_worker_computes_is_the_same(cluster, tmp_path):
    """A real case, shards of the oracle and of a repair; first, while both nodes live."""
    data, protocol = tiny_graph(), override(PAPER, TINY)
    records = {}
    for name, engine in (("here", None), ("there", RayEngine())):
        outcome = run_study(
            {"mine": data}, ["sgc"], [0, 1], store=tmp_path / name, protocol=protocol, engine=engine
        )
        assert outcome.failures == {} and outcome.stored == 2
        found = Store(tmp_path / name).records(protocol.digest)
        records[name] = [(r.run, r.frozen, r.methods, r.oracle) for r in found]
    assert records["here"] == records["there"]
    budget = Budget(epochs=5, patience=None, learning_rate=1e-2, weight_decay=0.0)
    exposure = expose(train_backbone("sgc", data, [0, 1], device="cpu", budget=budget))
    given = exposure, data.y, data.test_mask[:, :2]
    whole, sharded = solve(*given), solve_oracle_sharded(*given, shards=3, engine=RayEngine())
    for name in ("member", "node", "recipient", "margin", "terms", "coefficients", "indptr"):
        np.testing.assert_array_equal(getattr(sharded, name), getattr(whole, name))
    masks = data.train_mask[:, :2], data.val_mask[:, :2]
    fitted = SetTranslation(budget).fit(exposure, data.y, *masks)
    here = repaired_logits_sharded(fitted, exposure, shards=1, size=8)
    there = repaired_logits_sharded(fitted, exposure, shards=4, size=8, engine=RayEngine())
    assert here.shape == (2, 60, 3) and (here == there).all()


def test_errors_of_a_task_come_back_and_are_not_retried(cluster, tmp_path):
    marker = tmp_path / "calls"

    def work(shared, task, tell):
        with marker.open("a") as file:
            file.write(f"{task}\n")
        if task == 1:
            raise InputError("a planted fault")
        return task * shared

    results = dict(RayEngine().map(work, [0, 1, 2], shared=10))
    assert (results[0], results[2]) == (0, 20)
    assert isinstance(results[1], Failure)
    assert results[1].error == "a planted fault"
    assert "InputError" in results[1].traceback
    assert Counter(marker.read_text().split()) == {"0": 1, "1": 1, "2": 1}


@LONG
def test_a_worker_that_keeps_dying_is_a_failure(cluster):
    def work(shared, task, tell):
        if task:
            os._exit(1)
        return "fine"

    results = dict(RayEngine(retries=1).map(work, [0, 1]))
    assert results[0] == "fine"
    assert isinstance(results[1], Failure)


def test_the_cluster_of_the_tests_listens_on_this_machine_alone(cluster):
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    assert cluster.address.startswith("127.0.0.1:")


def test_needs_that_no_node_meets_are_refused(cluster):
    with pytest.raises(InputError, match="no node of the cluster has 64 CPUs"):
        list(RayEngine(cpus=64).map(located, [1]))
    with pytest.raises(InputError, match="ask for some"):
        RayEngine(cpus=0)


class Killer(Watcher):
    """Kills the second node at its second case or later, once four cases are stored.

    A node's first worker may start late, so how many cases it has begun is read off, not assumed.
    """

    def __init__(self, cluster, begun):
        self.cluster, self.begun, self.stored, self.killed = cluster, begun, [], False

    def failed(self, case, failure):
        raise AssertionError(failure.traceback)

    def finished(self, case, seconds):
        self.stored.append(str(case))
        if len(self.stored) >= 4 and (before := self.workers()) and not self.killed:
            self.killed, deadline = True, time.monotonic() + 20
            while len(self.workers()) == len(before):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            # Machines die with all that runs on them; a worker may outlive Ray's node for a while.
            worker = int(self.workers()[-1])
            os.kill(worker, signal.SIGSTOP)
            self.cluster.remove_node(self.cluster.second, allow_graceful=False)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    def workers(self):
        """The second node's, a line per case that it has begun."""
        lines = [line.split() for line in self.begun.read_text().splitlines()]
        return [pid for _, node, pid in lines if node == self.cluster.second.node_id]


@LONG
def test_a_node_dies_in_the_middle_and_nothing_is_lost_or_stored_twice(cluster, tmp_path):
    """Last, because one node is gone afterwards."""
    begun = tmp_path / "begun"
    begun.touch()
    killer = Killer(cluster, begun)
    engine = RayEngine()
    outcome = run_study(
        ["cora"],
        [f"b{k}" for k in range(20)],
        [0, 1],
        store=tmp_path / "store",
        work=lambda shared, case, tell: located(begun, case, tell),
        engine=engine,
        watcher=killer,
    )
    assert (outcome.stored, outcome.failures) == (40, {})
    assert Counter(killer.stored) == {f"cora × b{k}": 1 for k in range(20)}
    records = list(Store(tmp_path / "store").records(PAPER.digest))
    assert len(records) == 40
    nodes = Counter(record.environment["node"] for record in records)
    assert nodes[cluster.second.node_id] > 0, "it did some of the work before it died"
    begins = Counter(line.split()[0] for line in begun.read_text().splitlines())
    assert max(begins.values()) == 2, "the case in flight on the dead node was begun again"
    assert sum(node["Alive"] for node in ray.nodes()) == 1


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"install gnn-repair\[ray\]"):
        RayEngine()


# A cluster that is not there, and one whose head is killed in the middle of a study.


@pytest.fixture
def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    "form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}", "[::1]:{}", "ray://[::1]:{}", ""]
)
def test_a_dead_address_is_said_before_ray_is_asked(monkeypatch, closed_port, form):
    """Ray itself would wait for a quarter of an hour. Without one the environment's counts."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    if not form:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    engine = RayEngine(form.format(closed_port) or None)
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was asked"))
    with pytest.raises(InputError, match=r"no Ray cluster answers at .*ray start --head"):
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
    with pytest.raises(ResourceError, match=f"127.0.0.1:{closed_port} is gone; start it"):
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


@LONG
def test_a_killed_head_ends_the_study_with_a_sentence_and_keeps_the_records(tmp_path):
    from ray.cluster_utils import Cluster

    store = tmp_path / "store"
    with patch.dict(os.environ, ENVIRONMENT):
        cluster = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            code = STUDY.format(store=str(store), address=cluster.address)
            command = [sys.executable, "-c", code]
            study = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
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
    assert study.returncode == 1, said
    assert "gnn-repair: the head of the Ray cluster at 127.0.0.1:" in said
    assert "what is stored is kept" in said and "Traceback" not in said
    assert len(list(Store(store).records(PAPER.digest))) == 2
    assert list(store.rglob("*.failed.json")) == []
