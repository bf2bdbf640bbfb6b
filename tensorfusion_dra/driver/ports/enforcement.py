"""Interfaces to the enforcers on this node: what the driver calls, and what each call promises."""

from typing import Protocol

from tensorfusion_dra.core.claims.evidence import NodeSigns, Places, Signs


class LiveSigns(Protocol):
    """Reader of the signs that enforcers leave; safe for all threads, and it raises nothing."""

    def of_claim(self, places: Places) -> Signs:
        """Return what is at a claim's places now, from files and local sockets alone.

        What cannot be read has its reason as its trouble.
        """
        ...

    def of_node(self) -> NodeSigns:
        """Return the signs of this node's enforcer; may take a few seconds if it is dead."""
        ...
