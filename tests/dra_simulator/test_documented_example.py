"""The example in docs/simulator.md runs as it stands."""

from typing import Any

from tests.support import markdown
from tests.support.markdown import ROOT


def test_the_example_of_another_drivers_test_passes() -> None:
    (code,) = markdown.blocks(markdown.text(ROOT / "docs" / "simulator.md"), "python")
    example: dict[str, Any] = {}

    exec(code, example)

    example["test_a_pod_gets_the_large_gpu"]()
