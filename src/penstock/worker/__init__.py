"""The process on the device: holds every model that is placed there, and runs batches.

- `loop`: receive, gather, run, scatter, reply; `__main__` starts it
- `device`: the three stages on a device; the CPU's are here
- `memory`: clients' segments, as this process has mapped them
- `isolate`: when a batch raises, finding the rows that are to blame
- `room`: when there is no memory for rows, or for their answers
- `warmup`: models get ready for what may come later, beside the loop
- `life`: dying with the engine, and leaving nothing behind
"""
