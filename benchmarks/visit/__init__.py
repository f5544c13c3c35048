"""All that needs a GPU, in one visit to a machine that has one: `make gpu-visit SECONDS=1700`.

    PYTHONPATH=src python3 -m benchmarks.visit --out DIR --work DIR [--seconds N] [--only PART,...]

Each part is a process of its own with a limit of its own, in an order in which the most is known
when time runs out. What a command had no time for the next one goes on with: DIR has everything.

parts.py      what is run, in which order, how long it should take and how long it may
suites.py     files of tests, all at the same time
look.py       the first part: whether the machine has what all others need
running.py    one part as a process: its output as it comes, its end by force if it must be
diary.py      what became of the parts, in a file that later commands read; the table
"""
