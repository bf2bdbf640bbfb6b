"""What users are told to apply is what Kubernetes takes."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "hack" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_is_valid_for_kubernetes(file: Path) -> None:
    documents = list(yaml.safe_load_all(file.read_text()))

    assert documents
    for document in documents:
        kubernetes_validate.validate(document, "1.36", strict=True)
