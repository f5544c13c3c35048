"""`penstock demo`: eight processes ask one network, in three ways, measured one after the other.

- `command`: the command: looks for what is needed, runs it all, prints
- `progress`: how far it is, in a terminal and elsewhere
- `comparison`: trains the network, then the three ways on the same work
- `training`: a process that trains it on digits; the only one that needs scikit-learn
- `crowd`: eight processes that ask, and what is measured of them
- `asker`: one of them; `copies`: a network of its own for it, with TensorFlow
- `child`: starting these processes, and talking with them
- `machine`: memory: what is free, what processes take
- `records`: what is found out; `show`: the same as bars and sentences

Nothing is imported here: the processes that are measured import only what they use. TensorFlow is
imported by `training` and `copies` alone, which run in processes of their own.
"""
