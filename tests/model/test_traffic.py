"""Many calls at a time, or one alone."""

from __future__ import annotations

import threading

from penstock.model.traffic import Traffic
from tests.conditions import until


def test_one_alone_waits_for_the_others_and_they_for_it() -> None:
    traffic = Traffic()
    going: list[str] = []
    seen: list[list[str]] = []
    leave = threading.Event()

    def among(name: str) -> None:
        with traffic.among_others():
            going.append(name)
            seen.append(list(going))
            assert leave.wait(20)
            going.remove(name)

    def alone() -> None:
        with traffic.alone():
            going.append("alone")
            seen.append(list(going))
            going.remove("alone")

    threads = [threading.Thread(target=among, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    until(lambda: len(going) == 2)
    threads.append(threading.Thread(target=alone))
    threads[-1].start()
    until(lambda: traffic._waiting == 1)
    threads.append(threading.Thread(target=among, args=("c",)))
    threads[-1].start()
    leave.set()
    for thread in threads:
        thread.join(20)
    assert seen[2] == ["alone"]  # neither with those before it nor with the one behind it
    assert seen[3] == ["c"]
    assert going == []
