"""The scheduler beside other policies, on simulated devices and a simulated clock.

    python -m benchmarks.scheduling [--quick] [--seeds N] [--out DIR]
    python -m benchmarks.scheduling --only closed-16x1 --table resnet50-h200

devices.py       what a batch takes, from measured tables
arrivals.py      when requests come and how slow batches are; drawn from the seed alone
clients.py       open and closed loops, and what they saw
simulator.py     the clock, the workers, and the protocol of a policy
policies.py      greedy and fixed-delay batching
penstock_policy.py   Penstock's own batcher, driven as the engine drives it
bounds.py        what no policy can beat, and why
campaign.py      every cell with every policy under every seed
verdicts.py      the goals, from paired runs
report.py, plot.py   the tables, the JSON and the pictures
"""
