"""What Prometheus' own promtool says of the rules, and its unit tests of them.

Skipped on machines without promtool, where test_monitoring_rules.py still checks every query.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support import markdown, monitoring, yaml_text
from tests.support.waiting import PATIENCE_SECONDS

HERE = Path(__file__).parent
UNIT_TESTS = sorted(HERE.glob("*tests*.yaml"))


def promtool(*arguments: str | Path, stdin: str = "") -> str:
    """Return what promtool prints; fail if it finds an error."""
    answer = subprocess.run(
        [monitoring.promtool(), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 5,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules.yml"
    file.write_text(monitoring.plain_rules())
    return file


def test_rules_have_no_fault(rules: Path) -> None:
    printed = promtool("check", "rules", "--lint=all", "--lint-fatal", rules)

    assert f"{len(monitoring.rules())} rules found" in printed


@pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda file: file.stem)
def test_unit_tests_of_the_rules(file: Path, rules: Path) -> None:
    shutil.copy(file, rules.parent)

    printed = promtool("test", "rules", rules.parent / file.name)

    assert "SUCCESS" in printed


def test_documented_scrape_configuration_is_valid(tmp_path: Path) -> None:
    (found,) = [
        yaml_text.load(block)
        for block in markdown.blocks(markdown.text(markdown.ROOT / "docs" / "install.md"), "yaml")
        if "scrape_configs:" in block
    ]
    # Debian builds promtool without the discovery of pods.
    (job,) = found["scrape_configs"]
    assert job.pop("kubernetes_sd_configs")[0]["role"] == "pod"
    job["static_configs"] = [{"targets": ["localhost:8081"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(found))

    assert "SUCCESS" in promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")
