"""`penstock demo`: eight processes and one model, with a copy each and with one copy for all.

- `command`: the command: runs it, shows progress, prints
- `comparison`: both ways, one after the other, on the same work
- `crowd`: eight processes that ask, and what is measured of them
- `asker`: one of them; `network`: the model they ask
- `show`: the figures as bars and sentences

Nothing is imported here: the processes that are measured import `asker` or `network` alone.
"""
