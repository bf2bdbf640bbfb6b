"""Traces of the node plugin's process: sent if the settings name a collector, else never loaded."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.support.otlp_collector import attributes, collector
from tests.support.waiting import PATIENCE_SECONDS

FLAGS = ("--node-name", "node-01", "--simulated-gpus", "1xA100-SXM4-80GB")


def test_prepares_and_unprepares_of_the_process_reach_the_collector() -> None:
    with collector() as received, tempfile.TemporaryDirectory(prefix="tft-") as folder:
        cluster = SimulatedCluster(Path(folder), gpus="2xA100-SXM4-80GB")
        cluster.plugin_flags.extend(["--otlp-endpoint", received.url])
        cluster.start()
        try:
            cluster.start_plugin()
            cluster.submit("a", {"tflops": "100", "vram": "16Gi"})
            cluster.until("running", lambda: cluster.container_of("a") is not None)
            cluster.delete("a")
            cluster.until("unprepared", lambda: not cluster.spec_files())
            cluster.until("released", lambda: not cluster.claims())
            code = cluster.stop_plugin()
        finally:
            cluster.stop()

    roots = [span for span in received.spans() if not span.parent_span_id]
    assert [span.name for span in roots] == ["prepare claim", "unprepare claim"]
    prepare = [span.name for span in received.spans() if span.parent_span_id == roots[0].span_id]
    assert prepare == ["queue", "read", "lookup", "resolve", "admit", "flush", "write"]
    assert attributes(roots[0].attributes)["k8s.pod.name"] == "a"
    assert received.resource()["k8s.node.name"] == "node-01"
    assert code == 0


def test_without_an_endpoint_nothing_of_opentelemetry_is_loaded() -> None:
    ended = python(
        "import sys",
        "from tensorfusion_dra.app.node_plugin import process, traces",
        "from tensorfusion_dra.app.shared.node_settings import Settings",
        "settings = Settings(node_name='node-01', simulated_gpus='1xA100-SXM4-80GB')",
        "assert traces.started(settings, None) == ()",
        "print([each for each in sys.modules if each.startswith(('opentelemetry', 'requests'))])",
    )

    assert (ended.returncode, ended.stdout) == (0, "[]\n")


def test_endpoint_without_the_extra_is_bad_input(tmp_path: Path) -> None:
    ended = python(
        "import sys",
        "sys.modules['opentelemetry'] = None",
        "from tensorfusion_dra import cli",
        "sys.exit(cli.main())",
        arguments=[
            "node-plugin",
            *FLAGS,
            *("--otlp-endpoint", "http://127.0.0.1:4318"),
            *("--data-dir", str(tmp_path / "data"), "--cdi-dir", str(tmp_path / "cdi")),
            *("--tensor-fusion-root", str(tmp_path / "tf"), "--kubelet-root", str(tmp_path)),
        ],
    )

    assert ended.returncode == 2
    assert "pip install 'tensorfusion-dra[otel]', or an image that was built with REQUIREMENTS" in (
        ended.stderr
    )


def python(*lines: str, arguments: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines), *(arguments or [])],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
