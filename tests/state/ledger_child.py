"""A second process on the same ledger: ``python -m tests.state.ledger_child VERB FOLDER NAME``.

It says what it did line by line, and waits for a line where a test has to come first.
"""

import itertools
import sys
from pathlib import Path

from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.state.ledger import Ledger
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, claim_fit, fitted_claim
from tests.support.builders.gpus import gpu
from tests.support.builders.nodes import node_offer

NODE = node_offer(gpu())
(DEVICE,) = NODE.devices


def main() -> None:
    verb, folder, name = sys.argv[1:]
    if verb == "begin":
        begin(Path(folder))
        return
    ledger = Ledger(Path(folder))
    {"record": record, "admit": admit, "hold": hold}[verb](ledger, name)
    ledger.close()


def record(ledger: Ledger, name: str) -> None:
    """Records claims for ever; the UID of each is said once it is recorded."""
    for number in itertools.count():
        claim = fitted_claim(f"{name}-{number}", allocation(DEVICE, number), on=NODE)
        with ledger.transaction() as step:
            step.put(claim)
        tell(claim.ref.uid)


def admit(ledger: Ledger, name: str) -> None:
    """Admits claims for a sixteenth of the card until one is refused."""
    tell("ready")
    sys.stdin.readline()
    for number in itertools.count():
        wanted = allocation(DEVICE, ord(name) * 1000 + number, tflops="1", vram="5Gi")
        claim = allocated_claim(f"{name}-{number}", wanted)
        try:
            with ledger.transaction() as step:
                step.put(claim_fit(claim, on=NODE, beside=step.claims_on([DEVICE])).claim)
        except ClaimError as error:
            tell(str(error))
            return
        tell(claim.ref.uid)


def begin(folder: Path) -> None:
    """Begins one further ledger after the other, each when a line comes."""
    tell("ready")
    for number in itertools.count():
        if not sys.stdin.readline():
            return
        try:
            Ledger(folder / str(number)).close()
        except RetryableError as error:
            tell(str(error))
        else:
            tell("opened")


def hold(ledger: Ledger, name: str) -> None:
    """Stays in a transaction until a line comes."""
    with ledger.transaction() as step:
        step.put(fitted_claim(name, allocation(DEVICE, 1), on=NODE))
        tell("held")
        sys.stdin.readline()
    tell("released")


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
