"""Training on several devices and machines, with Keras 3. See `docs/train.md`.

`fit` carries a Keras model into the scope of a strategy and trains it with a loop of our own, for
Keras' own `fit` breaks there. One step::

    feed ─▶ replica: forward, backward of each micro-batch ─▶ sums ─┐   one packed
    feed ─▶ replica: …                                              ├─▶ all-reduce ─▶ divide, clip,
    feed ─▶ replica: … on another worker                            ┘                 apply: on each

- `fitting`: `fit`, the way in; `options`: what may be asked for; `history`: what comes back
- `running`: a run from end to end; `assembly`: its parts; `choosing`: what is found out by trying
- `carry`: a model, with all that it has learnt, into a scope; `naming`: what is the caller's own
  in it; `forgetting`: what of that would be lost; `beside`: what is in no config and no weight;
  `precision`: its policies there
- `strategies`: which replicas there are, and how they add up; `cluster`, `nodes`: which processes
- `feed`: rows to micro-batches, each row once an epoch
- `step`: forward, backward, all-reduce, apply; `weighing`: what each piece counts in the sum;
  `masking`: which of its entries do; `chance`: of what layers draw that have no seed;
  `sums`: over micro-batches; `reducing`: over replicas; `clipping`: what is applied of the sums;
  `scaling`: the loss scale of float16; `tally`: metrics and statistics across replicas;
  `passes`: a model forward, and its metrics; `undoing`: what a step that failed puts back;
  `apart`: the step of one of several workers, in smaller parts where memory does not suffice
- `tracing`: functions that a run has for itself
- `loop`: epochs, what happens between steps; `intake`: data on its way to the devices;
  `soundness`: weights that are no numbers; `validation`; `callbacks`: whom the loop tells
- `agreement`: what all workers must have the same of; `alike`: whether they take the same steps
- `checkpoints`: how a state is kept, and found again; `saving`: what of a run is kept;
  `memories`: what callbacks remember; `keeping`: when
- `micro`, `jit`, `remat` (`recompute`, `segments`): what fits, and what is faster
- `pipeline`: layers on several devices; `profile`: where the time went
- `launcher`: the processes of `penstock train`
- `servers`, `coordinating`, `handing`: parameter servers; `shipping`: rows that the chief has;
  `sharing`: those that workers read themselves; `reading`: how, in a worker's process;
  `patience`: an end to waiting for a cluster; `leaving`: the end of a process that has lost it
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.train.fitting import fit
    from penstock.train.history import History
    from penstock.train.pipeline import stages
    from penstock.train.strategies import prepare

__all__ = ["History", "fit", "prepare", "stages"]

_HOMES = {
    "History": "penstock.train.history",
    "fit": "penstock.train.fitting",
    "prepare": "penstock.train.strategies",
    "stages": "penstock.train.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.train' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
