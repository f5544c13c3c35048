"""What a system must offer to be measured."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.core.processes import Workspace

Settings = dict[str, int | float | bool]


@dataclass(frozen=True)
class Load:
    """So many client processes, each with so many requests outstanding."""

    clients: int
    outstanding: int

    @property
    def label(self) -> str:
        return f"{self.clients}x{self.outstanding}"


class System(Protocol):
    """One way to let many processes share one function."""

    @property
    def name(self) -> str:
        """Its key in the results."""

    @property
    def title(self) -> str:
        """What people call it."""

    def sweep(self, quick: bool) -> list[Settings]:
        """The settings to try; the best of them is what is compared."""

    def serve(self, settings: Settings, workspace: Workspace) -> AbstractContextManager[str]:
        """Serve the work until the block is left; gives the endpoint for clients."""

    def client_commands(self, endpoint: str, load: Load) -> list[list[str]]:
        """Modules with arguments that, run together, are the clients of this load.

        Each speaks the dialogue that `benchmarks.core.client` describes.
        """
