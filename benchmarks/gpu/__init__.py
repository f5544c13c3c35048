"""The GPU benchmark: ResNet-50 through Penstock beside the most that the card can do.

    PYTHONPATH=src python3 -m benchmarks.gpu [--only PART,...] [--quick] [--rehearse] [--out DIR]

Images of 224 × 224 × 3 bytes in, 1000 floats out, random weights, half precision. The limit is the
maximum over compile modes and batch sizes, on data that lies on the card, in a process that imports
no Penstock. Every answer is checked against the network called directly in float32.

The parts, each measured by one module, in this order:

limit             bare.py, limit.py (a process), sweep.py
crowd, few, one   client.py (processes), engine.py (a process), served.py, loads.py
array             array.py (a process), loads.py
again             loads.py
tune              tuner.py (a process), tuned.py
ways              alone.py (processes), ways.py
tight             filler.py (a process), tight.py
mps               mps.py
soak              soaker.py (processes), soak.py

plan.py       how much is measured; every figure is a flag
place.py      the folder that all processes share: the network's file, caches, logs
network.py    makes the network, the images and the answers that are right
images.py     the images of one process, and whether an answer is right
card.py       the facts of the GPU, and what of its memory is used
results.py    rows as they are found, in a file that later commands add to
targets.py    the goals
report.py, plot.py   the tables and the picture

Processes, loads, clocks and goals are those of `benchmarks.core` and `benchmarks.models`.
"""
