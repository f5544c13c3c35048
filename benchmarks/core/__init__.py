"""The core benchmark: what a request costs before any model is worth waiting for.

    python -m benchmarks.core [--quick] [--out DIR]

Rows of 150,528 bytes go from client processes to one function and answers of 4,000 bytes come
back. The function adds up every row, so each byte is read; every request carries new data; every
answer is checked by the client that asked.

workload.py      the rows: fresh data, and the answer that each must get
work.py          the function that every system serves
systems/         Penstock and its peers, one module each, behind one interface
http_exchange.py     a client of the HTTP peers: raw sockets, epoll, keep-alive
penstock_exchange.py a client of Penstock: its public face, one row a request
client.py        the client process: connect, wait for the common start, load, report
stopwatch.py     when a load runs and which requests count
processes.py     children that always end
load.py          N clients with M outstanding requests against one system
plan.py          how long, how often, which loads
campaign.py      the run itself: sweeps, rounds, scale, memory
memory.py        what the engine process holds
machine.py       the facts of the machine
goals.py         what a goal is, and whether a figure meets it
targets.py       the goals of this benchmark
report.py, plot.py   the table, the JSON and the picture
"""
