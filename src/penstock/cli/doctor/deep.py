"""TensorFlow itself: imported in a process of its own, its devices listed, a tiny model run.

That takes seconds, and on a GPU a little of its memory while it lasts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from penstock.cli.doctor.finding import Finding, ok, problem
from penstock.launch import exit_text

_SECONDS = 300.0
_PROBE = """
import atexit, json, os, sys, time
sys.dont_write_bytecode = True  # of what AutoGraph makes
began = time.monotonic()
import tensorflow as tf
told = {"version": tf.__version__, "import": time.monotonic() - began}
built = tf.sysconfig.get_build_info()
told["cuda"] = built.get("cuda_version", "") if built.get("is_cuda_build") else ""
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
told["gpus"] = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
                for gpu in gpus]
import keras
told["keras"] = keras.__version__
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
began = time.monotonic()
told["shape"] = list(tf.function(model)(tf.ones((2, 4))).shape)
told["run"] = time.monotonic() - began
print("told:" + json.dumps(told), flush=True)
atexit._run_exitfuncs()  # AutoGraph removes its files then
os._exit(0)
"""


def findings(gpus: int) -> Iterator[Finding]:
    """What TensorFlow says. `gpus`: how many there are."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        yield problem(
            "tensorflow runs",
            f"it did not run a tiny model within {_SECONDS:.0f} s",
            "run `python -c 'import tensorflow'` and see where it hangs",
        )
        return
    answers = [line[5:] for line in done.stdout.splitlines() if line.startswith("told:")]
    if not answers:
        last = (done.stderr.strip().splitlines() or [exit_text(done.returncode)])[-1]
        yield problem(
            "tensorflow runs", f"it does not: {last[:200]}", "pip install -U 'penstock[cpu]'"
        )
        return
    told = json.loads(answers[0])
    yield ok(
        "tensorflow runs",
        f"{told['version']} with Keras {told['keras']}: imported in {told['import']:.1f} s, "
        f"a tiny model in {told['run']:.1f} s",
    )
    seen = told["gpus"]
    if seen:
        yield ok("tensorflow sees", ", ".join(seen))
    elif gpus and told["cuda"]:
        yield problem(
            "tensorflow sees",
            f"no GPU, though there are {gpus}: it needs the libraries of CUDA {told['cuda']}",
            "pip install 'penstock[gpu]'; TF_CPP_MIN_LOG_LEVEL=0 python -c "
            "'import tensorflow as tf; tf.config.list_physical_devices()' says what is missing",
        )
    elif gpus:
        yield problem(
            "tensorflow sees", "no GPU: it is built for CPUs", "pip install 'penstock[gpu]'"
        )
    else:
        yield ok("tensorflow sees", "CPUs only")
