"""The process in the middle: admits, queues, batches, dispatches, supervises and counts.

It never touches a tensor and imports neither TensorFlow nor numpy. By file, from the inside out:

- `requests`, `segments`, `workers`: what the engine knows of each, as small state machines
- `cards`: what it knows of a model, and tells clients
- `clients`: what it knows of a client; `intake`: reading a client's messages, believing none
- `admission`: who is let into the queue; `settling`, `answers`: how requests end
- `delivery`: clients are told of that as fast as they read; `failures`, `apart`: what is kept of
  errors, and of answers in segments of their own, until then
- `core`: the decisions. Events and the time in, `effects` out; no I/O
- `health`: restarts, hangs and blame
- `connections`: the clients' sockets; `allowance`: how many they may have; `complaints`: what is
  logged of them
- `server`: the process around it all; `__main__` starts it
- `processes`: starting, watching and killing workers
- `owner`: `penstock.Engine`, on the side of whoever starts an engine
"""
