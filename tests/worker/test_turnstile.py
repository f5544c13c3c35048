"""At most so many at a time, in the order in which they came."""

import threading

from penstock.worker.turnstile import Turnstile
from tests.conditions import until


class Guest:
    """A thread that goes in and stays until it is told to leave."""

    def __init__(self, stile: Turnstile, inside: list[int], number: int) -> None:
        self.leave = threading.Event()
        self.thread = threading.Thread(target=self._visit, args=(stile, inside, number))
        self.thread.start()

    def _visit(self, stile: Turnstile, inside: list[int], number: int) -> None:
        with stile:
            inside.append(number)
            assert self.leave.wait(20)


def test_whoever_came_first_goes_in_first_and_never_more_than_there_are_places() -> None:
    stile, inside = Turnstile(2), []
    guests: list[Guest] = []
    for number in range(6):
        guests.append(Guest(stile, inside, number))
        until(lambda: len(inside) + len(stile._waiting) == len(guests))
    assert inside == [0, 1]
    for left, number in enumerate([1, 0, 2, 3], 1):
        guests[number].leave.set()
        until(lambda left=left: len(inside) == 2 + left)
        assert inside == list(range(2 + left))
    for guest in guests:
        guest.leave.set()
        guest.thread.join(20)
    with stile, stile:  # both places are free again
        assert not stile._waiting


def test_one_who_leaves_does_not_go_in_again_before_those_who_wait() -> None:
    stile, inside = Turnstile(1), []
    guests = []
    with stile:
        for number in range(3):
            guests.append(Guest(stile, inside, number))
            until(lambda: len(stile._waiting) == len(guests))
        for guest in guests:
            guest.leave.set()
    with stile:
        assert inside == [0, 1, 2]
    for guest in guests:
        guest.thread.join(20)


def test_an_error_inside_gives_the_place_back() -> None:
    stile = Turnstile(1)
    for _ in range(2):
        try:
            with stile:
                raise ValueError
        except ValueError:
            pass
    with stile:
        pass
