"""The soak test: minutes of mixed load while workers and clients are killed, every answer checked.

    __main__   the command: python -m benchmarks.soak --seconds 600
    campaign   the run itself: an engine, clients, and a kill every one to two seconds
    client     a client process: asks in every way, checks every answer, keeps a ledger
    ledger     what was asked and how it ended, in a file that survives a kill
    work       the model function, and the data that it is asked about
    leftovers  what remains of a run: processes, descriptors, files
    report     the verdict, the table and the JSON

An answer is right when it carries the request's own number, the checksum of its own fresh random
data and, where asked for, that data mirrored. A request that a killed client had open counts as
nothing; every other one must have ended exactly once: with a right answer, or with an error that
says that it may be retried, or with what the client itself asked for (a deadline, a cancellation).
"""
