"""`simulate --keep` prints how to access the running cluster."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tensorfusion_dra.simulator.rest import PODS, Client
from tests.support.waiting import PATIENCE_SECONDS


def test_the_printed_kubeconfig_gives_access_to_the_running_cluster(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tensorfusion_dra", "simulate", "--pods", "1", "--keep"]
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        printed = ""
        try:
            for line in process.stderr:
                printed += line
                if "Log of the node plugin" in line:
                    break
            (kubeconfig,) = re.findall(r"^  export KUBECONFIG=(\S+)$", printed, re.MULTILINE)
            (url,) = re.findall(r'"server": "(\S+)"', Path(kubeconfig).read_text(encoding="utf-8"))
            pods = [pod["metadata"]["name"] for pod in Client(url).list(PODS).items]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_SECONDS)

    assert pods == ["pod-1"]
    assert "  kubectl get pods,resourceclaims -o wide\n" in printed
    assert "  kubectl describe pod pod-1\n" in printed
    assert process.returncode == 0
    assert not Path(kubeconfig).exists()
