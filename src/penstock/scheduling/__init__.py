"""Which requests form the next batch. Pure: no I/O, and the time is an argument.

- `queue`: what waits, by model and shape, priority and fairness key
- `estimates`: how long a batch of so many rows takes, kept up to date
- `returns`: who was just answered and will probably ask again at once
- `runners`: what is to be known of workers
- `groups`: how many rows a batch gets where a worker has several hands
- `batcher`: when a batch leaves, and with whom

The engine calls `add`, `answered`, `remove`, `expire`, `next_batch` and `missed`, and does what
comes back.
"""
