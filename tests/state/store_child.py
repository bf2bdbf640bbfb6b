"""A second process on the same store: ``python -m tests.state.store_child VERB FOLDER NAME``.

It reports each action on a line of stdout. Where a test has to act first, it waits for a line on
stdin.
"""

import itertools
import sys
from pathlib import Path

from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.state.claim_store import ClaimStore
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.gpus import gpu
from tests.support.builders.nodes import RULES, node_facts

NODE = node_facts(gpu())
(DEVICE,) = NODE.devices


def main() -> None:
    verb, folder, name = sys.argv[1:]
    if verb == "begin":
        begin(Path(folder))
        return
    store = ClaimStore(Path(folder), rules=RULES)
    {"record": record, "admit": admit}[verb](store, name)
    store.close()


def record(store: ClaimStore, name: str) -> None:
    """Record claims for ever; report the UID of each once it is recorded."""
    for number in itertools.count():
        claim = claim_record(f"{name}-{number}", allocation(DEVICE, number), on=NODE)
        with store.transaction() as records:
            records.put(claim)
        report(claim.ref.uid)


def admit(store: ClaimStore, name: str) -> None:
    """Admit claims for a sixteenth of the card until one is refused."""
    report("ready")
    sys.stdin.readline()
    for number in itertools.count():
        wanted = allocation(DEVICE, ord(name) * 1000 + number, tflops="1", vram="5Gi")
        claim = allocated_claim(f"{name}-{number}", wanted)
        try:
            with store.transaction() as records:
                records.put(claim_admission(claim, on=NODE, beside=records.claims()))
        except ClaimError as error:
            report(str(error))
            return
        report(claim.ref.uid)


def begin(folder: Path) -> None:
    """Create one new store for each line on stdin."""
    report("ready")
    for number in itertools.count():
        if not sys.stdin.readline():
            return
        try:
            ClaimStore(folder / str(number), rules=RULES).close()
        except RetryableError as error:
            report(str(error))
        else:
            report("opened")


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
