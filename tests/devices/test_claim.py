"""`penstock.claim_gpu`: a share for a process of one's own, and TensorFlow kept to it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

import penstock
from penstock.devices import ledger, limit
from penstock.errors import ConfigError, DeviceMemoryError
from tests.devices.conftest import GB

TWO = {"uuid": "GPU-a", "used": 10 * GB}, {"uuid": "GPU-b", "name": "Roomy"}
LIMIT = 4096 - 700  # MB


def test_a_claim(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)  # another file's tests may use it
    machine.set(*TWO)
    before = dict(os.environ)
    with penstock.claim_gpu("4G") as claim:
        assert (claim.card.uuid, claim.bytes) == ("GPU-b", 4 * GB)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
        (promise,) = ledger.promises()
        assert (promise.card, promise.size, promise.pid) == ("GPU-b", 4 * GB, os.getpid())
        with pytest.raises(ConfigError, match=r"has <Claim: 4.0 GB of gpu:1 \(Roomy, GPU-b\)> al"):
            penstock.claim_gpu("1G")
    assert ledger.promises() == []
    assert dict(os.environ) == before
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == limit.__name__]
    penstock.claim_gpu("4G", device="gpu:0").release()


@pytest.mark.parametrize(
    ("size", "options", "error", "words"),
    [
        (
            "20G",
            {"wait": 1e9},
            DeviceMemoryError,
            "20.0 GB were asked for.*16.0 GB unused, nothing",
        ),
        ("8G", {"device": "gpu:0"}, DeviceMemoryError, r"gpu:0 \(Fake, GPU-a\): 6.0 GB left of 16"),
        ("4G", {"device": "gpu:5"}, ConfigError, "PCI bus.*there are: gpu:0"),
        ("500M", {}, ConfigError, "at least 764 MB, got 500 MB: CUDA's context"),
        ("four", {}, ConfigError, "a size is a number"),
        ("4G", {"wait": float("nan")}, ConfigError, "wait: expected seconds"),
    ],
)
def test_what_is_refused(machine, size, options, error, words) -> None:
    machine.set(*TWO)
    before = dict(os.environ)
    with pytest.raises(error, match=words):
        penstock.claim_gpu(size, **options)
    assert ledger.promises() == []
    assert dict(os.environ) == before


def test_without_a_gpu(machine, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES='' hides the 1 GPU of"):
        penstock.claim_gpu("4G")
    machine.set()
    with pytest.raises(ConfigError, match="no GPU was found"):
        penstock.claim_gpu("4G")


CLAIM = "import penstock; claim = penstock.claim_gpu('4G')\n"
SHOW = "import tensorflow as tf; print(tf.limits, type(tf.__spec__.loader).__name__)\n"


def test_tensorflow_is_limited_when_it_is_imported(machine) -> None:
    machine.set(*TWO)
    done = machine.python(CLAIM + "import sys; assert 'tensorflow' not in sys.modules\n" + SHOW)
    assert done.stdout == f"{{'GPU-b': {LIMIT}}} SourceFileLoader\n", done.stderr
    assert done.stderr == ""
    assert not list(machine.ledger.glob("*.promise"))  # released as it ended


@pytest.mark.parametrize(
    "look",
    [
        "spec = importlib.util.find_spec('tensorflow'); assert spec.loader.get_filename()",
        "sys.modules['types'] = None\ntry:\n    import tensorflow\nexcept ImportError:\n"
        "    sys.modules['types'] = types",
    ],
    ids=["looked for", "tried in vain"],
)
def test_whoever_only_looks_for_tensorflow_does_not_lift_the_limit(machine, look) -> None:
    done = machine.python(CLAIM + f"import importlib.util, sys, types\n{look}\n" + SHOW)
    assert done.stdout == f"{{'GPU-aaaa-1': {LIMIT}}} SourceFileLoader\n", done.stderr


def test_scripts_may_still_choose_a_number_and_growth(machine) -> None:
    script = (
        CLAIM
        + "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
        + SHOW
        + "for gpu in tf.config.list_physical_devices('GPU'):\n"
        "    tf.config.experimental.set_memory_growth(gpu, True)\n"
    )
    done = machine.python(script)
    assert done.stdout.startswith(f"{{'GPU-aaaa-1': {LIMIT}}}")
    assert done.stderr == ""


def test_a_script_that_hides_the_gpu_is_left_alone(machine) -> None:
    done = machine.python(CLAIM + "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n" + SHOW)
    assert done.stdout.startswith("{} ")
    assert done.stderr == ""


def test_a_tensorflow_without_gpus_is_told_of(machine) -> None:
    done = machine.python(CLAIM + SHOW, FAKE_TENSORFLOW="cpu")
    assert done.stdout.startswith("{} ")
    assert "TensorFlow sees no GPU" in done.stderr


def test_a_forked_child_claims_its_own(machine) -> None:
    script = CLAIM + (
        "import os\n"
        "from penstock.devices import ledger\n"
        "if os.fork() == 0:\n"
        "    assert not claim.held\n"
        "    own = penstock.claim_gpu('5G')\n"
        "    print(sorted(p.size >> 30 for p in ledger.promises()), flush=True)\n"
        "    raise SystemExit\n"
        "os.wait(); print(claim.held, [p.size >> 30 for p in ledger.promises()])\n"
    )
    assert machine.python(script).stdout == "[4, 5]\nTrue [4]\n"


def test_a_child_that_is_forked_while_another_thread_waits_for_room(machine) -> None:
    machine.set(TWO[0])
    script = """
import os, signal, threading, penstock
from penstock.devices import ledger

take, refused = ledger.take, threading.Event()

def watched(*arguments, **options):
    try:
        return take(*arguments, **options)
    finally:
        refused.set()

ledger.take = watched
threading.Thread(target=penstock.claim_gpu, args=("8G", 60), daemon=True).start()
refused.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    ledger.take = take
    penstock.claim_gpu("4G")
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""
    assert machine.python(script).stdout == "0\n"


def test_tensorflow_imported_before_but_not_started(machine) -> None:
    done = machine.python("import tensorflow\n" + CLAIM + SHOW)
    assert done.stdout.startswith(f"{{'GPU-aaaa-1': {LIMIT}}}"), done.stderr


@pytest.mark.parametrize(
    "started", ["tf.start()", "tf.config.list_physical_devices('GPU')"], ids=["runs", "looked"]
)
def test_tensorflow_started_before(machine, started) -> None:
    machine.set(*TWO)
    script = f"""
import tensorflow as tf
{started}
import os, penstock
from penstock.devices import ledger
before = dict(os.environ)
try:
    penstock.claim_gpu("4G")
except penstock.errors.ConfigError as error:
    print(error)
    print(ledger.promises(), dict(os.environ) == before)
"""
    done = machine.python(script)
    told, state = done.stdout.splitlines()
    assert "TensorFlow has started its GPUs in this process already" in told
    assert state == "[] True"


def test_no_tensorflow_is_no_error_of_ours(machine) -> None:
    (machine.modules / "tensorflow.py").unlink()
    script = CLAIM + (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        "try:\n    import tensorflow\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )
    assert machine.python(script).stdout == "tensorflow\n"


REAL = """
import warnings
from penstock.devices import limit
limit.limit_tensorflow(4 << 30)
with warnings.catch_warnings(record=True) as told:
    import tensorflow as tf
print([str(each.message)[:37] for each in told if each.category is RuntimeWarning])
from tensorflow.python.eager import context
gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
context.context()._physical_devices.append(gpu)
context.context()._memory_growth_map[gpu] = None
limit.apply(tf, 4 << 30)
print(tf.config.get_logical_device_configuration(gpu)[0].memory_limit)
tf.config.experimental.set_memory_growth(gpu, True)
from tensorflow.config.experimental import set_memory_growth
set_memory_growth(gpu, True)
"""


def test_the_real_tensorflow_with_a_made_up_gpu() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PENSTOCK_"))}
    done = subprocess.run(
        [sys.executable, "-c", REAL], env=environment, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    seen, megabytes = done.stdout.splitlines()
    assert seen in (
        "['a share of a GPU is held for this pro']",
        "[]",
    )  # the latter where it has one
    assert int(megabytes) == LIMIT
