"""How tensors and messages cross processes.

- `messages`: every record that crosses a socket, as named records with a fixed binary layout
- `channel`: a unix seqpacket socket that never blocks, with descriptors beside the bytes
- `segment`: sealed shared memory, created, verified and mapped
- `arena`: how a client cuts its segments into slots
- `tensors`: how arrays lie in a slot (the only file here that knows numpy)
- `rendezvous`: where an engine's socket lies, and who may use it

Nothing here decides anything: which request runs when is `scheduling/` and `engine/`.
"""
