"""Which requests form the next batch. Pure: no I/O, and the time is an argument.

- `lanes`: what may share a batch: one model, one signature
- `queue`: what waits, by priority and fairness key
- `estimates`: how long a batch of so many rows takes, kept up to date
- `abilities`: what each worker can do of it: the most rows, the sizes, how long they take there
- `returns`: who was just answered and will probably ask again at once
- `runners`: what is to be known of workers
- `groups`: how many rows a batch gets where a worker has several hands
- `deadlines`: who is in time, on which worker
- `patience`: whether a worker that is free had better wait a little
- `decisions`: what comes out: which jobs leave for whom, and why now
- `batcher`: when a batch leaves, and with whom

The engine calls `add`, `answered`, `remove`, `expire`, `next_batch` and `missed`, and does what
comes back.
"""
