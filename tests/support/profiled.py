"""Which functions a call runs, and how often: for what is to be done once."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType


def calls(action: Callable[[], object]) -> Counter[str]:
    """Run an action; return how often it called each function, by `<module>.<qualified name>`.

    The module is without the name of the package. Functions in C, and those that other threads
    call, are not counted.
    """
    found = Counter[str]()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            module = str(frame.f_globals.get("__name__")).removeprefix("tensorfusion_dra.")
            found[f"{module}.{frame.f_code.co_qualname}"] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return found
