"""The one way in, for every process that wants answers.

- `client`: `Client` and `connect`: predict, submit, predict_async, map
- `session`: one connection: slots, credits, the thread that reads
- `call`: one call's rows, split into pieces and joined again
- `answer`: the future that a caller holds
- `fork`: what happens to all of that in a forked child
"""
