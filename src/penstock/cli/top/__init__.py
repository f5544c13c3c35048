"""`penstock top`: what an engine does just now.

- `command`: asks the engine again and again, until one of the two ends
- `rates`: what happened between two of its answers
- `usage`: what its processes take of the machine
- `show`: all that, in a terminal of any width
"""
