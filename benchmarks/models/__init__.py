"""The models benchmark: a real network behind Penstock, beside what one has without it.

    python -m benchmarks.models [--quick] [--out DIR]

MobileNetV2 for images of 96 × 96 × 3, as a .keras file. Single images come from eight processes:
through Penstock, from a model of their own in each, and, as the limit, in whole batches inside of
one process that has nothing else to do. Every answer is checked against the model called directly.

network.py       makes the network, the images and the answers that are right
images.py        the images of one process: which comes next, and whether its answer is right
compiled.py      the four ways to compile the network, without Penstock
limit.py         the process that calls a compiled function in batches: the limit
sweep.py         every way to compile at every batch size, to find the best
alone.py         a process with a model of its own, one image a call
client.py        a process that is a client of Penstock, several images outstanding
engine.py        the process that owns the engine, and times its start
served.py        Penstock's own processes: their start, what they did, what they used
ways.py          the processes of each way, told to run a load all at once
plan.py          how long, how often, which sizes
findings.py      what a run found, and medians of it
campaign.py      the run itself: starts, sweep, rounds, memory
targets.py       the goals
report.py, plot.py   the table, the JSON and the picture

Processes, clocks, the facts of the machine and what a goal is are those of `benchmarks.core`.
"""
