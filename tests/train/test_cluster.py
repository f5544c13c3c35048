"""Who trains with whom, from the environment alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.errors import ConfigError
from penstock.train import nodes
from penstock.train.cluster import Cluster, found

TWO = ["a:1", "b:1"]


def config(cluster: object, task: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def test_nothing_is_found_where_nothing_is_said() -> None:
    assert found({}) is None
    assert found({"TF_CONFIG": " "}) is None
    assert found({"TF_CONFIG": "{}"}) is None


def test_workers_and_their_first_is_the_chief() -> None:
    first, second = (
        found(config({"worker": TWO}, {"type": "worker", "index": index})) for index in (0, 1)
    )
    assert (first.kind, first.size, first.is_chief, first.rank) == ("multiworker", 2, True, 0)
    assert (second.is_chief, second.rank, second.address) == (False, 1, "b:1")
    assert found({"TF_CONFIG": second.tf_config()}) == second


def test_a_chief_by_name_computes_too_and_is_the_first() -> None:
    cluster = {"chief": ["c:1"], "worker": TWO}
    chief = found(config(cluster, {"type": "chief", "index": 0}))
    worker = found(config(cluster, {"type": "worker", "index": 0}))
    assert (chief.size, chief.is_chief, chief.rank) == (3, True, 0)
    assert (worker.is_chief, worker.rank) == (False, 1)


def test_with_parameter_servers_the_chief_computes_nothing() -> None:
    cluster = {"chief": ["c:1"], "worker": TWO, "ps": ["d:1"]}
    chief, worker, server = (
        found(config(cluster, {"type": role, "index": 0})) for role in ("chief", "worker", "ps")
    )
    assert (chief.kind, chief.size, chief.rank) == ("parameter_server", 2, -1)
    assert (worker.rank, server.rank) == (0, -1)
    assert [each.is_chief for each in (chief, worker, server)] == [True, False, False]


def test_one_worker_trains_alone() -> None:
    assert found(config({"worker": ["a:1"]}, {"type": "worker", "index": "0"})).kind == "single"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[1]", "no JSON object"),
        ('{"cluster": 3}', "must be objects"),
        (config({"worker": "a:1"}, {"type": "worker"}), 'must be a list of "host:port"'),
        (config({"worker": ["a"]}, {"type": "worker"}), "host:port"),
        (config({"worker": ["a:70000"]}, {"type": "worker"}), "up to 65535"),
        (config({"worker": ["a:1", "a:1"]}, {"type": "worker"}), "two tasks have the address a:1"),
        (config({"worker": TWO}, {"type": "worker", "index": 2}), "has 2 of that role"),
        (config({"worker": TWO}, {"type": "worker", "index": True}), "a whole number, not True"),
        (config({"worker": TWO}, {"type": "boss", "index": 0}), "not 'boss'"),
        (config({"worker": TWO}, {"type": "evaluator", "index": 0}), "no evaluator"),
        (config({"worker": TWO}, {}), "must be chief, worker or ps, not None"),
        (config({"worker": TWO, "master": ["c:1"]}, {"type": "worker"}), "not master"),
        (config({"worker": TWO, "ps": ["c:1"]}, {"type": "worker"}), "no chief"),
        (config({"chief": ["c:1"], "ps": ["d:1"]}, {"type": "chief"}), "there is no worker"),
        (config({"chief": TWO}, {"type": "chief", "index": 0}), "one chief, not 2"),
    ],
)
def test_a_bad_tf_config_is_refused_with_what_came(text: object, said: str) -> None:
    environment = text if isinstance(text, dict) else {"TF_CONFIG": text}
    with pytest.raises(ConfigError, match="TF_CONFIG cannot be used") as refused:
        found(environment)
    assert said in str(refused.value)
    assert environment["TF_CONFIG"][:50] in str(refused.value)


# ── Slurm ───────────────────────────────────────────────────────────────────────────────────────

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[08,11]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


def test_a_step_of_slurm_is_a_cluster() -> None:
    cluster = found(SLURM)
    hosts, ports = zip(*(address.split(":") for address in cluster.workers), strict=True)
    assert hosts == ("gpu08", "gpu08", "gpu11")
    assert int(ports[1]) == int(ports[0]) + 1
    assert ports[2] == ports[0]
    assert (cluster.index, cluster.source, cluster.kind) == (2, "Slurm", "multiworker")
    assert found(SLURM | {"SLURM_PROCID": "0"}).workers == cluster.workers
    assert found(SLURM | {"SLURM_JOB_ID": "4712"}).workers != cluster.workers


def test_ports_that_slurm_has_reserved_are_used() -> None:
    assert found(SLURM | {"SLURM_STEP_RESV_PORTS": "12000-12003"}).workers[1] == "gpu08:12001"
    assert found(SLURM | {"PENSTOCK_TRAIN_PORT": "9000"}).workers[1] == "gpu08:9001"


def test_a_batch_script_and_a_step_of_one_task_train_alone() -> None:
    batch = {name: text for name, text in SLURM.items() if "STEP" not in name}
    assert found(batch | {"SLURM_NTASKS": "3"}) is None
    one = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0"}
    assert found(SLURM | one) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "contradict"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(y3)"}, r"expected 2\(x3\),1"),
        ({"SLURM_STEP_NODELIST": "gpu[a-b]"}, "expected names like"),
        ({"SLURM_PROCID": "7"}, "expected less than 3; got 7"),
        ({"SLURM_DISTRIBUTION": "cyclic"}, "in blocks"),
        ({"SLURM_STEP_NUM_TASKS": "many"}, "a whole number, got 'many'"),
    ],
)
def test_what_slurm_cannot_mean_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        found(SLURM | changes)


def test_slurms_lists_are_written_out() -> None:
    assert nodes.hosts_of("a[1-2,08],b,c[1-2]-r[3,4]") == [
        *("a1", "a2", "a08", "b"),
        *("c1-r3", "c1-r4", "c2-r3", "c2-r4"),
    ]
    assert nodes.counts_of("2(x3),1") == [2, 2, 2, 1]


# ── Kubernetes ──────────────────────────────────────────────────────────────────────────────────

POD = {"JOB_COMPLETION_INDEX": "1", "PENSTOCK_TRAIN_NODES": "3"}


def test_an_indexed_job_of_kubernetes_is_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "own_name", lambda: "my-job-1.net.default.svc.cluster.local")
    cluster = found(POD)
    assert cluster.workers[2] == "my-job-2.net.default.svc.cluster.local:2222"
    assert (cluster.size, cluster.index, cluster.source) == (3, 1, "Kubernetes")


def test_an_indexed_job_that_does_not_say_so_is_no_cluster() -> None:
    assert found({"JOB_COMPLETION_INDEX": "1"}) is None


def test_what_kubernetes_cannot_mean_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="completionMode: Indexed"):
        found({"PENSTOCK_TRAIN_NODES": "3"})
    with pytest.raises(ConfigError, match="expected less than PENSTOCK_TRAIN_NODES=3"):
        found(POD | {"JOB_COMPLETION_INDEX": "3"})
    monkeypatch.setattr(nodes, "own_name", lambda: "my-job-1")
    with pytest.raises(ConfigError, match="subdomain: SERVICE"):
        found(POD)


def test_tf_config_comes_first() -> None:
    mine = Cluster(("a:1", "b:1"), index=1)
    assert found(SLURM | POD | {"TF_CONFIG": mine.tf_config()}) == mine


def test_neither_tensorflow_nor_numpy_is_loaded() -> None:
    script = (
        "import sys, penstock.train.cluster, penstock.train.launcher.__main__\n"
        "print([name for name in ('tensorflow', 'keras', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
