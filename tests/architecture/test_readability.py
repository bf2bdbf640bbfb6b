"""Rules for a reader who opens one file: names that have one meaning, and that exist."""

import re
from typing import Final

from tests.support.sources import ROOT, files, imported

TEST_MODULE: Final = re.compile(r"tests\.(\w+\.)*test_")


def test_no_test_module_imports_another() -> None:
    """What several of them use is in tests/support."""
    found = {
        str(path.relative_to(ROOT)): others
        for path in files(ROOT / "tests")
        if (others := {name for name in imported(path) if TEST_MODULE.match(name)})
    }

    assert found == {}
