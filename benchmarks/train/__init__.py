"""The training benchmark: ResNet-50 through `penstock.train.fit` beside Keras' own `Model.fit`.

    PYTHONPATH=src python3 -m benchmarks.train [--only PART,...] [--quick] [--rehearse] [--out DIR]

Images of 224 × 224 × 3 bytes, 1000 classes, random weights, made-up data in memory. Every way is a
process of its own with one long `fit`, which stops after some steps until it is told to go on
(`way.py`): so ways that are warm take turns on one card, and none of them measures compilation.

rate      the same settings (float32, one batch size), and what `auto` chooses; plain `fit` in both
          precisions beside them
remat     what recomputing saves at its peak, and what it costs, with XLA and without
large     a global batch that plain `fit` cannot hold

plan.py       how much is measured; every figure is a flag
network.py    the networks and their data
way.py        a process: one way of training
turns.py      ways that take turns
parts.py      the parts
results.py    what is known so far, in files that later commands add to
targets.py    the goals
report.py, plot.py   the tables and the picture
"""
