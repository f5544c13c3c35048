"""The systems that are compared.

interface.py         what a system is: settings to try, a server, commands for clients
roster.py            which systems there are
penstock_engine.py   Penstock, and its server process
mp_queue.py          multiprocessing.Queue, the usual recipe
http_peers.py        the HTTP systems: Mosec, LitServe, and a bare one that shows the driver's limit
mosec_server.py, litserve_server.py, bare_server.py   their server processes
"""
