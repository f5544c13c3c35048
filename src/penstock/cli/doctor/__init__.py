"""`penstock doctor`: whether this machine can run Penstock, and what would make it better.

- `command`: asks everybody below and prints what they found
- `finding`: one thing that was looked at: fine, worth a note, or a problem, and what to do
- `machine`: Python, kernel, cores, memory, descriptors, and what the core builds on
- `places`: the folder of the sockets, the engines in it, the cache
- `packages`: TensorFlow and its relatives, by what is installed, without importing them
- `gpus`: NVIDIA's driver and cards, who uses them, to whom their memory is promised
- `deep`: TensorFlow itself, in a process of its own
"""
