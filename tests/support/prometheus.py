"""A real Prometheus with the rules, which scrapes each second; for machines that have one."""

import http.client
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
import yaml

from tests.support import monitoring
from tests.support.waiting import PATIENCE_SECONDS, eventually

_WAIT: Final = re.compile(r"^( +for: ).+$", re.MULTILINE)

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """A running server on loopback."""

    port: int

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer; fail if it is an error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", f"/api/v1/{path}?{urlencode(parameters)}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr: str) -> list[Sample]:
        """Return labels, without the name, and value of each series at this moment."""
        return [
            (
                {name: value for name, value in each["metric"].items() if name != "__name__"},
                float(each["value"][1]),
            )
            for each in self.get("query", query=expr)["result"]
        ]

    def until(self, what: str, expr: str) -> list[Sample]:
        """Wait until a query has a result, and return it."""
        found: list[Sample] = []

        def is_there() -> bool:
            found[:] = self.query(expr)
            return bool(found)

        assert eventually(is_there), f"{what}: {expr} gave nothing"
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return the state of each rule."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", "/-/ready")
            return connection.getresponse().status == 200
        except ConnectionError:
            return False
        finally:
            connection.close()


@contextmanager
def running(folder: Path, port: int, jobs: Mapping[str, Mapping[str, Any]]) -> Iterator[Prometheus]:
    """Run Prometheus; its alerts fire at once.

    Args:
        folder: An empty folder for its files.
        port: A free port.
        jobs: Fields of the scrape configuration by name of the job.
    """
    (folder / "rules.yml").write_text(_WAIT.sub(r"\g<1>0s", monitoring.plain_rules()))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": name, **fields} for name, fields in jobs.items()],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    command = [
        str(_program()),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    server = Prometheus(port=port)
    try:
        assert eventually(server.is_ready), (folder / "log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _program() -> Path:
    found = Path(monitoring.promtool()).with_name("prometheus")
    if not found.exists():
        pytest.skip(f"found no prometheus beside {monitoring.promtool()}")
    return found
