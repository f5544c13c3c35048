"""The soak test: minutes of mixed load while workers and clients are killed, every answer checked.

    __main__   the command: python -m benchmarks.soak [--model digits] --seconds 600
    campaign   the run itself: an engine, clients, and kills of both
    client     a client process: asks in every way, checks every answer, keeps a ledger
    ledger     what was asked and how it ended, in a file that survives a kill
    work       what is asked and how it is checked: a function, and fresh data
    digits     the same with a network, and images whose answers are known
    leftovers  what remains of a run: processes, descriptors, files
    report     the verdict, the table and the JSON

An answer is right when it carries the request's own number, the checksum of its own fresh random
data and, where asked for, that data mirrored. With digits it is right when all ten probabilities
are those of its own image: no other image has the same. A request that a client had open for a
moment when it was killed counts as nothing; every other one must have ended exactly once: with a
right answer, or with an error that says that it may be retried, or with what the client itself
asked for (a deadline, a cancellation). Nine in ten at least must be right answers. That the engine
is gone is a fault, as nobody ends it.
"""
