"""A second process on the same store, which records claims until it is killed.

Its arguments are the store's folder and the beginning of the claims' names. It reports the UID of
each claim on a line of stdout once it is recorded.
"""

import itertools
import sys
from pathlib import Path

from tensorfusion_dra.state.claim_store import ClaimStore
from tests.support.builders.nodes import RULES
from tests.support.stores import put, recorded_claim


def main(folder: str, name: str) -> None:
    store = ClaimStore(Path(folder), rules=RULES)
    for number in itertools.count():
        claim = recorded_claim(f"{name}-{number}", number=number)
        put(store, claim)
        sys.stdout.write(f"{claim.ref.uid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
