"""The tables of docs/limits.md describe what a container gets."""

import re
from typing import Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import ClaimError
from tests.core.claims.container_cases import admitted_claim, container_edits, one_card
from tests.support import markdown
from tests.support.builders.pods import pod_annotations
from tests.support.markdown import ROOT

LIMITS: Final = markdown.text(ROOT / "docs" / "limits.md")
AMOUNT: Final = re.compile(r"(?P<tflops>[0-9.]+) TFLOPS, (?P<vram>[0-9]+[GM]i)")
UNNAMED: Final = ("312", "80Gi")


def claimed(row: list[str]) -> tuple[str, str]:
    """Return the TFLOPS and the memory that a row's claim consumes."""
    amounts = AMOUNT.fullmatch(row[0])
    return (amounts["tflops"], amounts["vram"]) if amounts else UNNAMED


def annotations(row: list[str]) -> dict[str, str]:
    """Return the annotation that a row names."""
    named = [code.partition(": ") for code in markdown.codes(row[1])]
    return pod_annotations(**{name: value for name, _, value in named})


@pytest.mark.parametrize("row", markdown.table(LIMITS, "limits"), ids=" ".join)
def test_container_gets_the_limits_of_the_documented_table(row: list[str]) -> None:
    claim = one_card(*claimed(row))
    if row[2].startswith("refused"):
        with pytest.raises(ClaimError, match=r"expected (at least its request|the whole card)"):
            admitted_claim(claim, annotations(row))
        return

    environment, _ = container_edits(admitted_claim(claim, annotations(row)))

    if row[2] == "no limit":
        assert environment.keys() & {names.ENV_SM_PERCENT_LIMIT, names.ENV_MEMORY_LIMIT} == set()
    else:
        assert row[2] == f"{environment[names.ENV_SM_PERCENT_LIMIT]} %"
        assert row[3].startswith(f"{environment[names.ENV_MEMORY_LIMIT]} MiB")


def test_table_of_variables_names_every_variable_that_carries_a_limit() -> None:
    rows = markdown.table(LIMITS, "environment")

    documented = {code for row in rows for code in markdown.codes(row[0])}
    environment, _ = container_edits(admitted_claim(one_card()))
    without_limits = {
        *names.ENV_BYPASSES,
        *(names.ENV_SHM_PATH, names.ENV_SHM_FOLDER),
        *(names.ENV_POD_NAMESPACE, names.ENV_POD_NAME),
        *(names.ENV_HYPERVISOR_IP, names.ENV_HYPERVISOR_PORT),
    }
    carrying = environment.keys() - without_limits
    assert documented == {*carrying, f"{names.ENV_SHARE_PREFIX}<share>"}
