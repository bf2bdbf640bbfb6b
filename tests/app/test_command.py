"""The command's verbs, their completion, and what the documents show of their output."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra import cli
from tensorfusion_dra.app.shared import version
from tests.app.cel.test_cel_command import two_nodes
from tests.app.doctor.here import put_prepared_claim
from tests.guard import sitecustomize as path_guard
from tests.support import forks, markdown
from tests.support.forks import Ended
from tests.support.installed_packages import install
from tests.support.markdown import ROOT, Command
from tests.support.waiting import PATIENCE_SECONDS

Capture = pytest.CaptureFixture[str]


def command(*arguments: str, **environment: str) -> Ended:
    """Run the command in a process of its own."""
    guarded = path_guard.environment({"PATH": "/usr/bin:/bin", **environment})
    return forks.run(*arguments, environment=guarded)


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: Capture, quiet: None) -> Run:
    """Return a function that runs a verb that does not serve, in this process."""

    def run_here(*arguments: str) -> Ended:
        code = cli.main([*arguments])
        out, err = capsys.readouterr()
        return Ended(arguments, code, out, err)

    return run_here


def host_folders(root: Path) -> list[str]:
    """Return flags for the host folders that `inspect` reads."""
    return ["--kubelet-root", str(root / "kubelet"), "--cdi-dir", str(root / "cdi")]


@pytest.mark.process
def test_version_flag_prints_name_and_version() -> None:
    ended = command("--version")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"tensorfusion-dra {version.current()}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "VERB"),
        (["fly"], "fly"),
        (["inspect", "--bogus"], "--bogus"),
        (["inspect", "--poll-seconds", "soon"], "poll-seconds: found 'soon'"),
        (["inspect", "--qos", "best"], "qos: found 'best', expected one of low"),
        (["inspect", "--node-name", "Node_1"], "node-name: found 'Node_1'"),
        (["inspect", "--config", "/nowhere/a.yaml"], "config /nowhere/a.yaml: No such file"),
        (["inspect", "--gpu-models", "/nowhere/a.yaml"], "/nowhere/a.yaml"),
        (["inspect", "--simulated-gpus", "/nowhere/a.yaml"], "/nowhere/a.yaml"),
        (["inspect", "--simulated-gpus", "2xA1000000"], "A1000000"),
        (["inspect", "--as-template", "--model", "A1000000"], "A1000000"),
        (["doctor", "--on", "moon"], "moon"),
        (["doctor", "--enforcer", "magic"], "enforcer: found 'magic'"),
        (["simulate", "--pods", "-1"], "pods: found -1"),
        (["simulate", "--request", "tflops"], "request 'tflops'"),
        (["simulate", "--request", "speed=1"], "request 'speed=1'"),
        (["simulate", "--request", "tflops=1_000"], "request 'tflops=1_000'"),
        (["completion", "sh"], "invalid choice: 'sh'"),
    ],
)
def test_bad_input_is_a_one_line_error_with_exit_code_2(
    arguments: list[str], expected: str, run: Run
) -> None:
    assert_refused(run(*arguments), expected)


def help_of(capsys: Capture, *arguments: str) -> str:
    """Return the help of a verb, or of the command, with runs of blanks reduced to one."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--help"])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_has_the_verbs_of_users_and_then_those_that_the_chart_runs(capsys: Capture) -> None:
    _, _, shown = help_of(capsys).partition("for users:")
    users, _, served = shown.partition("run by the chart's pods:")

    for text, serves in ((users, False), (served, True)):
        for verb in cli.VERBS:
            assert (f" {verb.name} {' '.join(verb.help.split())}" in text) == (
                verb.serves == serves
            )


CLUSTER = "[--kubeconfig FILE] [--context NAME]"


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("why", ["[-n NAMESPACE] " + CLUSTER]),
        ("top", ["[-n NAMESPACE] [-A] " + CLUSTER]),
        ("teardown-check", ["[-n NAMESPACE] [-A] " + CLUSTER]),
        ("doctor", ["[-n NAMESPACE] " + CLUSTER]),
        ("cel explain", [CLUSTER]),
        ("cel check", []),
        ("cel translate", []),
        ("inspect", []),
        ("simulate", []),
    ],
)
def test_flags_and_formats_are_the_same_for_every_verb(
    capsys: Capture, verb: str, flags: list[str]
) -> None:
    shown = help_of(capsys, *verb.split())

    assert all(each in shown for each in ["[-o {table,wide,json,yaml}]", *flags])


@pytest.mark.parametrize(
    "verb", ["why", "top", "teardown-check", "doctor", "cel", "inspect", "simulate", "convert"]
)
def test_exit_codes_are_the_same_for_every_verb(capsys: Capture, verb: str) -> None:
    shown = help_of(capsys, verb)

    assert re.search(r"exit codes: 0 \w.* 1 \w.* 2 bad input, or something is out of reach$", shown)


@pytest.mark.parametrize("verb", ["doctor", "inspect", "memory-limits"])
def test_help_only_says_where_the_node_plugins_settings_are(
    tmp_path: Path, capsys: Capture, verb: str
) -> None:
    shown = help_of(capsys, verb)

    assert "--config FILE YAML file with the node plugin's settings; each is also a flag" in shown
    assert not re.search("--(kubelet-root|enforcer|pool-source|health-port) ", shown)
    ended = cli.main([verb, "--kubelet-root", "here"])
    assert (ended, capsys.readouterr().err.partition(", ")[0]) == (
        2,
        "tensorfusion-dra: kubelet-root: found 'here'",
    )


@pytest.mark.parametrize("verb", ["top", "why", "teardown-check"])
def test_a_server_out_of_reach_is_exit_code_2(tmp_path: Path, run: Run, verb: str) -> None:
    file = tmp_path / "kubeconfig"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
    kubeconfig = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "a", "user": {}}],
    }
    file.write_text(yaml.safe_dump(kubeconfig))

    ended = run(verb, "--kubeconfig", str(file), *(["a"] if verb == "why" else []))

    assert_refused(ended, "Connection refused")


@pytest.mark.process
@pytest.mark.parametrize("verb", ["node-plugin", "webhook"])
def test_verb_that_serves_refuses_bad_input_too(verb: str) -> None:
    assert_refused(command(verb, "--health-address", "soon"), "health-address: found 'soon'")


def assert_refused(ended: Ended, expected: str) -> None:
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("tensorfusion-dra: ")
    assert ended.stderr.count("\n") == 1
    assert expected in ended.stderr


@pytest.mark.process
def test_simulate_verbose_adds_the_cdi_spec_and_the_whole_environment() -> None:
    ended = command("simulate", "-v", "--gpus", "1xT4", "--pods", "2", "--request", "whole")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Tesla T4" in ended.stdout
    assert "pod-2 waits:" in ended.stdout
    assert '  "kind": "tensor-fusion.ai/vgpu",' in ended.stdout
    assert "  NVIDIA_VISIBLE_DEVICES=void\n" in ended.stdout
    assert "Torn down, nothing left behind (start " in ended.stdout


def test_inspect_shows_cards_devices_health_and_taints_and_writes_nothing(
    tmp_path: Path, run: Run
) -> None:
    profile = tmp_path / "gpus.yaml"
    profile.write_text("gpus: [{product: T4, recovery_action: 1}, {product: T4}]")
    cards = ["--simulated-gpus", str(profile), *host_folders(tmp_path)]

    ended = run("inspect", "-o", "json", *cards)
    as_yaml = yaml.safe_load(run("inspect", "-o", "yaml", *cards).stdout)
    shown = run("inspect", *cards).stdout

    found = json.loads(ended.stdout)
    sick, well = found["cards"]
    assert as_yaml["devices"] == found["devices"]
    assert (ended.returncode, sick["model"], well["model"]) == (0, "T4", "T4")
    assert [found[name] for name in ("shares", "cdiSpecs", "leftOut")] == [[], [], []]
    assert (well["health"]["healthy"], sick["health"]["healthy"]) == (True, False)
    assert sick["health"]["reason"] == "gpu-reset-required"
    (taint,) = found["devices"][0]["taints"]
    assert (taint["value"], taint["effect"]) == ("gpu-reset-required", "NoSchedule")
    assert "taints" not in found["devices"][1]
    assert f"{sick['uuid']}: the NVIDIA driver requests a reset of the GPU" in shown
    assert list(tmp_path.iterdir()) == [profile]


def test_inspect_shows_what_claims_take_and_their_limits(tmp_path: Path, run: Run) -> None:
    put_prepared_claim(tmp_path)

    cards = ("--simulated-gpus", "2xA100-SXM4-80GB", "--tensor-fusion-root", str(tmp_path / "tf"))
    shown = run("inspect", *cards, *host_folders(tmp_path)).stdout

    (claim,) = [line for line in shown.splitlines() if line.startswith("  default/a ")]
    assert "  tflops 100, vram 16Gi  soft: 33 %, 16Gi  " in claim
    assert shown.count("  312 (table)  80Gi  0  ") == 2


def test_inspect_without_the_nvidia_driver_names_the_missing_library(run: Run) -> None:
    ended = run(
        *("inspect", "--nvml-library", "/nowhere/libnvidia-ml.so.1"),
        *host_folders(Path("/nowhere")),
    )

    assert ended.returncode == 1
    assert "/nowhere/libnvidia-ml.so.1" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_inspect_reports_a_damaged_record_and_shows_the_rest(tmp_path: Path, run: Run) -> None:
    data = tmp_path / "kubelet" / "plugins" / "tensor-fusion.ai.dra-driver"
    (data / "claims").mkdir(parents=True)
    (data / "claims.lock").touch()
    record = data / "claims" / "uid-a.json"
    record.write_text("no record")

    ended = run("inspect", "--simulated-gpus", "1xT4", *host_folders(tmp_path))

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"tensorfusion-dra: claim record {record}: found no record")
    assert "T4" in ended.stdout
    assert record.read_text() == "no record"


@pytest.mark.process
def test_simulate_shows_an_oversubscribed_pool_and_each_containers_limits() -> None:
    ended = command(
        *("simulate", "-o", "json", "--gpus", "1xA100-SXM4-40GB", "--pods", "4"),
        *("--tflops-oversell-ratio", "150"),
        *("--request", "tflops=156,vram=10Gi,vram-limit=40Gi"),
        *("--request", "tflops=300,vram=29Gi"),
        *("--request", "tflops=12,vram=0"),
        *("--request", "whole"),
    )

    report = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, "")
    burst, large, small, whole = report["pods"]
    assert [pod["phase"] for pod in report["pods"]] == ["Running", "Running", "Running", "Pending"]
    assert burst["env"]["TF_CUDA_SM_PERCENT_LIMIT"] == "50"
    assert large["env"]["TF_CUDA_SM_PERCENT_LIMIT"] == "97"
    assert large["env"]["TF_GPU_MEMORY_LIMIT"] == str(29 * 1024)
    assert small["shares"][0]["consumed"]["virtual_vram"] == "1Mi"
    assert "virtual_tflops" in whole["waits_for"]
    assert {left["capacity"]: left["free"] for left in report["left"]}["virtual_tflops"] == "0"


SETTINGS = ("--gpupool", "prod", "--qos", "high", "--enforcer", "hami-core")


def test_template_is_what_a_node_publishes_but_for_uuids_and_the_nodes_name(
    tmp_path: Path, run: Run
) -> None:
    pool = (*SETTINGS, "--tflops-oversell-ratio", "150")
    cards = "65xA100-SXM4-80GB"
    node = run(
        *("inspect", "-o", "json", "--node-name", "node-01", "--simulated-gpus", cards),
        *(*pool, *host_folders(tmp_path)),
    )
    template = run("inspect", "--as-template", "-o", "json", "--simulated-gpus", cards, *pool)

    assert (template.returncode, template.stderr) == (0, "")
    first, last = json.loads(template.stdout)["items"]
    spec = first["spec"]
    assert spec["pool"] == {"name": "prod/template", "resourceSliceCount": 2, "generation": 1}
    assert spec["driver"] == "tensor-fusion.ai.dra-driver"
    assert {spec["nodeName"], last["spec"]["nodeName"]} == {"template"}
    assert "ownerReferences" not in first["metadata"]
    made = [*spec["devices"], *last["spec"]["devices"]]
    assert len({device["name"] for device in made}) == 65
    assert list(map(without_node, made)) == list(
        map(without_node, json.loads(node.stdout)["devices"])
    )


def without_node(device: dict[str, Any]) -> dict[str, Any]:
    unique = ("uuid", "node_name")
    attributes = {key: value for key, value in device["attributes"].items() if key not in unique}
    return {**device, "name": "", "attributes": attributes}


def test_template_of_a_model_needs_no_node_and_reports_what_only_a_node_knows(
    run: Run,
) -> None:
    typed = shown(ADVANCED, "tensorfusion-dra inspect --as-template")
    arguments, _ = typed.line.replace("POOL", "prod").split(" > ")
    sure = run(*shlex.split(arguments)[1:])
    guessed = run(
        *("inspect", "--as-template", "-o", "json", "--model", "T4", "--node-name", "gpu-9"),
        *("--vram-expand-to-host-mem", "10"),
    )

    (item,) = yaml.safe_load(sure.stdout)["items"]
    assert (sure.returncode, sure.stderr) == (0, "")
    assert len(item["spec"]["devices"]) == 8
    assert item["spec"]["devices"][0]["attributes"]["enforcer"] == {"string": "hami-core"}
    assert json.loads(guessed.stdout)["items"][0]["spec"]["nodeName"] == "gpu-9"
    assert guessed.returncode == 1
    assert "enforcer: found auto, expected the name" in guessed.stderr
    assert "expands memory by that of this host" in guessed.stderr


def test_inspect_raw_prints_a_recording_of_nvml(run: Run) -> None:
    ended = run("inspect", "--raw", "--simulated-gpus", "1xT4")

    recording = json.loads(ended.stdout)
    assert recording["gpus"][0]["name"] == "Tesla T4"


def script(capsys: Capture, shell: str) -> str:
    """Return the script for a shell."""
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "libraries", "needed"),
    [
        ("top", ["grpc", "cel_expr_python", "kubernetes", "urllib3", "pynvml"], []),
        ("why.diagnosis", ["grpc", "kubernetes", "urllib3", "pynvml"], []),
        ("doctor.checks", ["kubernetes", "urllib3"], []),
        (
            "webhook.process",
            ["grpc", "kubernetes", "urllib3", "pynvml", "google.protobuf", "ssl"],
            ["ssl"],
        ),
        (
            "node_plugin.process, tensorfusion_dra.cli",
            ["kubernetes", "urllib3", "requests", "pynvml", "yaml", "tomllib", "grpc"],
            ["grpc"],
        ),
    ],
)
def test_verb_imports_no_library_that_only_others_or_some_nodes_use(
    module: str, libraries: list[str], needed: list[str]
) -> None:
    loaded = (
        f"import sys, tensorfusion_dra.app.{module}; print(*{set(libraries)} & sys.modules.keys())"
    )

    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).split() == needed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_every_verb_and_its_flags(capsys: Capture, shell: str) -> None:
    found = script(capsys, shell)

    assert [verb.name for verb in cli.VERBS if verb.name not in found] == []
    for flag in ("kubeconfig", "namespace", "node-name"):
        assert flag in found


@pytest.mark.process
def test_bash_completes_verbs_and_flags(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "completion.bash"
    file.write_text(script(capsys, "bash"))
    bash = shutil.which("bash")
    assert bash is not None
    program = f"""
        source {file}
        function_name=$(complete -p tensorfusion-dra | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        ask() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            "$function_name"
            echo "${{COMPREPLY[@]}}"
        }}
        ask tensorfusion-dra wh
        ask tensorfusion-dra top --wa
    """

    ended = subprocess.run(
        [bash, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )

    assert ended.stdout.split() == ["why", "--watch"]


def test_plugin_is_on_path_under_the_name_that_kubectl_looks_for() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

    assert scripts["kubectl-tensorfusion"] == "tensorfusion_dra.cli:main"


def test_plugin_shows_its_own_name(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-tensorfusion"])

    with pytest.raises(SystemExit):
        cli.main(["why", "--help"])

    assert capsys.readouterr().out.startswith("usage: kubectl tensorfusion why")


ADVANCED = markdown.text(ROOT / "docs" / "advanced.md")
USE = markdown.text(ROOT / "docs" / "use.md")
EXTEND = markdown.text(ROOT / "docs" / "extend.md")
DEMO = "make demo"
SECONDS = re.compile(r"\b[0-9]+\.[0-9] s\b")


def masked(lines: list[str] | tuple[str, ...]) -> list[str]:
    """Return the lines with durations masked, which differ in each run."""
    return [SECONDS.sub("N s", line) for line in lines]


def shown(document: str, start: str) -> Command:
    """Return the only command in a document that starts with this text."""
    (found,) = [each for each in markdown.commands(document) if each.line.startswith(start)]
    return found


def is_as_printed(command: Command, lines: list[str]) -> bool:
    """Return True if the lines match a command's documented output, with both masked."""
    return markdown.is_shown(tuple(masked(command.output)), masked(lines))


@pytest.mark.process
def test_the_readmes_show_what_the_demo_prints() -> None:
    ended = command("simulate")

    assert ended.stderr == ""
    for file in ("README.md", "README.zh-CN.md"):
        demo = shown(markdown.text(ROOT / file), DEMO)
        assert demo.line == DEMO
        assert masked(demo.output) == masked(ended.stdout.splitlines())


def test_the_users_page_shows_what_cel_prints(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    slices = tmp_path / "slices.yaml"
    slices.write_text(yaml.safe_dump_all(two_nodes()), encoding="utf-8")
    translate, explain = (
        shown(USE, f"tensorfusion-dra cel {verb}") for verb in ("translate", "explain")
    )

    translated = run(*shlex.split(translate.line)[1:])
    explained = run(*shlex.split(explain.line)[1:], "--slices", str(slices))

    assert is_as_printed(translate, translated.stdout.splitlines())
    assert is_as_printed(explain, explained.stdout.splitlines())


@pytest.mark.parametrize(
    ("word", "flags", "cards"),
    [
        ("count:", ("--simulated-gpus",), [*[("A100", "312")] * 3, ("My Card", "71.2")]),
        (
            "fp16TFlops",
            ("--simulated-gpus", "1xA100-SXM4-80GB", "--gpu-models"),
            [("A100", "300")],
        ),
    ],
    ids=["simulated GPUs", "models"],
)
def test_the_examples_of_profile_and_model_table_work(
    tmp_path: Path, run: Run, word: str, flags: tuple[str, ...], cards: list[tuple[str, str]]
) -> None:
    (text,) = [each for each in markdown.blocks(EXTEND, "yaml") if word in each]
    file = tmp_path / "example.yaml"
    file.write_text(text, encoding="utf-8")

    ended = run("inspect", *flags, str(file), *host_folders(tmp_path))

    assert ended.stderr == ""
    lines = [line for line in ended.stdout.splitlines() if "GPU-" in line][: len(cards)]
    assert all(f"{each} " in line for line, both in zip(lines, cards, strict=True) for each in both)


ATTRIBUTES = "tensorfusion_dra.attributes"
SOURCES = "tensorfusion_dra.health_sources"
CODE = """
import subprocess
from tensorfusion_dra.extend import Problem

def rack(gpu, node):
    return {"example.com/rack": "r1", "model": "mine"}

def other(gpu, node):
    return {"example.com/rack": "r2"}

def loud(gpu, node):
    print("a line of Python's")
    subprocess.run(["echo", "a line of a child's"], check=True)
    return {"example.com/rack": "r3"}

def fans(gpu):
    return [Problem(reason="fan-stopped", text="fan 2")] if gpu.index == 1 else []

def broken(gpu, node):
    raise ValueError("no rack of \\x1b[31m" + gpu.uuid)
"""


def inspected(site: Path, *arguments: str) -> Ended:
    """Run the command in a process of its own, which sees the packages in the folder."""
    folders = ["--kubelet-root", str(site / "kubelet"), "--cdi-dir", str(site / "cdi")]
    return subprocess.run(
        [
            *(sys.executable, "-m", "tensorfusion_dra", "inspect", "--providers"),
            *("--node-name", "node-01", "--simulated-gpus", "2xT4", *folders, *arguments),
        ],
        env=path_guard.environment({"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site)}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
def test_table_shows_state_time_names_and_problems_of_each_provider(tmp_path: Path) -> None:
    rack, fans = {"rack": "racks:rack", "broken": "racks:broken"}, {"fans": "racks:fans"}
    install(tmp_path, "racks", {ATTRIBUTES: rack, SOURCES: fans}, CODE)

    shown = inspected(tmp_path)

    assert shown.returncode == 1
    rows = {
        line.split()[1]: line.split() for line in shown.stdout.splitlines() if " racks " in line
    }
    assert rows["rack"][:5] == ["attributes", "rack", "racks", "1.0", "ok"]
    assert rows["rack"][-4:] == ["example.com/rack", "on", "2", "devices"]
    assert rows["fans"][-4:] == ["fan-stopped", "on", "1", "device"]
    assert "left out: rack: gpu-" in shown.stdout
    assert "model: the driver itself uses this name" in shown.stdout
    assert "failed: broken: GPU-" in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.mark.process
def test_a_provider_of_which_every_name_is_refused_is_of_no_use(tmp_path: Path) -> None:
    code = "def mine(gpu, node):\n    return {'model': 'mine'}\n"
    install(tmp_path, "racks", {ATTRIBUTES: {"mine": "racks:mine"}}, code)

    shown = inspected(tmp_path)

    (row,) = [line.split() for line in shown.stdout.splitlines() if " racks " in line]
    assert (shown.returncode, row[4]) == (1, "refused")
    assert "model: the driver itself uses this name" in shown.stdout


@pytest.mark.process
def test_document_says_who_failed_and_who_is_left_out_and_has_no_line_of_a_provider(
    tmp_path: Path,
) -> None:
    functions = {"alpha": "rack", "beta": "other", "broken": "broken", "off": "rack", "z": "loud"}
    entries = {name: f"racks:{function}" for name, function in functions.items()}
    install(tmp_path, "racks", {ATTRIBUTES: entries}, CODE)

    shown = inspected(tmp_path, "-o", "json", "--disable-provider", "off,gone")

    assert shown.returncode == 1
    found = json.loads(shown.stdout)
    providers = {
        each["name"]: each for each in found["providers"] if each["package"] == "racks 1.0"
    }
    states = {name: each["state"] for name, each in providers.items()}
    refused = dict.fromkeys(("beta", "z"), "refused")
    assert states == {"alpha": "ok", **refused, "broken": "failed", "off": "unused"}
    assert len(providers["alpha"]["given"]) == 2
    assert providers["alpha"]["seconds"] >= 0
    assert {
        each["reason"] for refused in providers["beta"]["refused"].values() for each in refused
    } == {"provider alpha gave this name first"}
    assert providers["off"]["reason"] == "disabled by the setting disable-provider"
    assert len(providers["broken"]["errors"]) == 2
    assert found["unknownDisabled"] == ["gone"]
    assert "a line of Python's" in shown.stderr
    assert "a line of a child's" in shown.stderr
