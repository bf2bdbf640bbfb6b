"""The verbs `why` and `cel` on a machine without the CEL library."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.builders.pods import pod_annotations
from tests.support.cel_command import A100, two_nodes
from tests.support.gpu_cluster import Cluster, request, two_cards
from tests.support.objects import pod
from tests.support.selecting import A

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
MISSING = "found no CEL library ("
EXPECTED = "), expected the Python package cel-expr-python"
WITHOUT = "import sys; sys.modules['cel_expr_python'] = None; from tensorfusion_dra import cli; "


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that cannot import the library."""
    code = f"{WITHOUT}sys.exit(cli.main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_translation_is_printed_and_its_types_are_not_checked() -> None:
    ended = run("cel", "translate", A100)

    assert (ended.returncode, ended.stdout) == (0, f'{A}.model == "A100"\n')
    assert ended.stderr.startswith(f"types not checked: {MISSING}")
    assert ended.stderr.endswith(f"{EXPECTED}\n")


@pytest.mark.parametrize(
    ("selector", "others"),
    [("true", {"syntax": True, "length": True}), ("1 +", {"syntax": False})],
)
def test_check_makes_the_other_checks(selector: str, others: dict[str, bool]) -> None:
    ended = run("cel", "check", "-o", "json", selector)

    found = {each["check"]: each for each in json.loads(ended.stdout)["checks"]}
    types = found.pop("types", None)
    assert (ended.returncode, {name: each["ok"] for name, each in found.items()}) == (1, others)
    assert types is None or (types["ok"] is None and MISSING in types["text"])
    assert (types is None) == (selector == "1 +")


def test_explanation_says_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "slices.yaml"
    file.write_text(yaml.safe_dump_all(two_nodes()))

    ended = run("cel", "explain", "--slices", str(file), "true")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"tensorfusion-dra: {MISSING}")


def why(cluster: Cluster, *arguments: str) -> dict[str, Any]:
    ended = run("why", "--kubeconfig", str(cluster.kubeconfig), "-o", "json", *arguments)
    assert (ended.returncode, ended.stderr) == (1, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    (unchecked,) = found["unchecked"]
    assert unchecked.startswith(f"free cards and the types of selectors: {MISSING}")
    assert (found["state"], found["nodes"]) == ("waits", [])
    return found


def test_why_makes_every_finding_but_that_of_free_cards(cluster: Cluster) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "20Gi"}))
    cluster.add_pod("gated", request({"vram": "20Gi"}), schedulingGates=[{"name": "g"}])

    answer = f"default/a waits; whether a card is free for it was not tried: {MISSING}"
    assert why(cluster, "a")["answer"].startswith(answer)
    assert why(cluster, "gated")["answer"] == (
        "default/gated cannot be scheduled: spec.schedulingGates: g."
    )


@pytest.mark.parametrize(
    ("amounts", "level"),
    [
        ({"tflops_request": "100", "vram_request": "1Gi"}, None),
        # The amounts follow from the cards that the selector selects.
        ({"compute_percent_request": "50", "vram_request": "1Gi"}, "could-not-look"),
    ],
)
def test_selector_of_a_pod_is_not_refused(
    amounts: dict[str, str], level: str | None, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("node-01", *two_cards())
    asking = pod("b")
    asking["metadata"]["annotations"] = pod_annotations(
        dra_enabled="true", dra_cel_filter=A100, **amounts
    )
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(asking))

    found = why(cluster, "-n", "default", "-f", str(file))

    levels = [each["level"] for each in found["findings"] if MISSING in each["found"]]
    assert levels == [level] * bool(level)
