"""The one way in, for every process that wants answers.

- `client`: `Client` and `connect`: predict, submit, predict_async, map
- `link`: the session that a client has just now, and how it comes to the next one
- `session`: one connection, and what is on its way
- `allowance`: slots and credits: what may be on its way at a time
- `reader`, `inbox`: who reads the connection, and what follows from what comes
- `kinds`: what is worked out once for all calls of a kind
- `signals`: what wakes a reader
- `call`: one call's rows, split into pieces and joined again
- `about`: what it can say of a model
- `answer`: the future that a caller holds
- `fork`: what happens to all of that in a forked child
"""
