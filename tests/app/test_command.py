"""The command's verbs, their completion, and what the documents show of their output."""

import json
import re
import shlex
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
from tests.app.doctor.here import put_prepared_claim
from tests.guard import sitecustomize as path_guard
from tests.support import markdown
from tests.support.cel_command import two_nodes
from tests.support.forks import Ended, command
from tests.support.installed_packages import install
from tests.support.markdown import ROOT, Command

Capture = pytest.CaptureFixture[str]
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
        (["simulate", "--request", "tflops=1,a.com/b-c=1"], "'a.com/b-c=1': expected tflops=..., "),
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
    refusal = "tensorfusion-dra: kubelet-root: found 'here'"
    assert (ended, capsys.readouterr().err.partition(", ")[0]) == (2, refusal)


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
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert re.match(f"tensorfusion-dra: .*{re.escape(expected)}", ended.stderr)


@pytest.mark.process
def test_simulate_verbose_adds_the_cdi_spec_and_the_whole_environment() -> None:
    ended = command("simulate", "-v", "--gpus", "1xT4", "--pods", "2", "--request", "whole")

    assert (ended.returncode, ended.stderr) == (0, "")
    for shown in (
        *("Tesla T4", "pod-2 waits:", '  "kind": "tensor-fusion.ai/vgpu",'),
        *("  NVIDIA_VISIBLE_DEVICES=void\n", "Torn down, nothing left behind (start "),
    ):
        assert shown in ended.stdout


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
    assert as_yaml["devices"][1] == found["devices"][1]
    assert (ended.returncode, sick["model"], well["model"]) == (0, "T4", "T4")
    assert [found[name] for name in ("shares", "cdiSpecs", "leftOut")] == [[], [], []]
    assert well["health"]["healthy"]
    unhealthy = {"healthy": False, "reason": "gpu-reset-required"}
    assert sick["health"].items() >= unhealthy.items()
    tainted, untainted = (each.get("taints", []) for each in found["devices"])
    assert [each["value"] for each in tainted] == ["gpu-reset-required"]
    assert untainted == []
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

    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "/nowhere/libnvidia-ml.so.1" in ended.stderr


def test_inspect_reports_a_damaged_record_and_shows_the_rest(tmp_path: Path, run: Run) -> None:
    data = tmp_path / "kubelet" / "plugins" / "tensor-fusion.ai.dra-driver"
    (data / "claims").mkdir(parents=True)
    (data / "claims.lock").touch()
    record = data / "claims" / "uid-a.json"
    record.write_text("no record")

    ended = run("inspect", "--simulated-gpus", "1xT4", *host_folders(tmp_path))

    assert ended.returncode == 1
    assert "T4" in ended.stdout
    assert ended.stderr.startswith(f"tensorfusion-dra: claim record {record}: found no record")
    assert record.read_text() == "no record"


@pytest.mark.process
def test_simulate_requests_a_capacity_of_another_package() -> None:
    ended = command(
        "simulate", "--pods", "1", "--request", "tflops=10,vram=1Gi,example.com/seats=2"
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "  pod-1  10 TFLOPS, 1Gi, 2 example.com/seats  Pending  -    -\n" in ended.stdout
    assert "pod-1 waits: 0/1 nodes are available: " in ended.stdout


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
    burst, large, small, whole = report["pods"]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [pod["phase"] for pod in report["pods"]] == ["Running", "Running", "Running", "Pending"]
    limits = ("TF_CUDA_SM_PERCENT_LIMIT", "TF_GPU_MEMORY_LIMIT")
    assert burst["env"]["TF_CUDA_SM_PERCENT_LIMIT"] == "50"
    assert [large["env"][name] for name in limits] == ["97", str(29 * 1024)]
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


def test_partitions_of_a_template_have_names_of_their_own_and_no_uuid_of_this_node(
    run: Run,
) -> None:
    cards = "1xA100-SXM4-80GB,2xA100-SXM4-80GB@mig=1g.10gb*2"

    template = run("inspect", "--as-template", "-o", "json", "--simulated-gpus", cards)

    (item,) = json.loads(template.stdout)["items"]
    zeros = "00000000-0000-0000-0000-00000000000"
    found = [
        (each["name"], each["attributes"]["parent_uuid"]["string"])
        for each in item["spec"]["devices"]
    ]
    assert found == [
        (f"gpu-{zeros}0", ""),
        *(
            (f"mig-{zeros}{place}", f"GPU-{zeros}{card}")
            for place, card in ((1, 1), (2, 1), (3, 2), (4, 2))
        ),
    ]


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
    enforcers = [each["attributes"]["enforcer"]["string"] for each in item["spec"]["devices"]]
    assert (sure.returncode, sure.stderr, enforcers) == (0, "", ["hami-core"] * 8)
    assert json.loads(guessed.stdout)["items"][0]["spec"]["nodeName"] == "gpu-9"
    assert guessed.returncode == 1
    for said in ("enforcer: found auto, expected the name", "expands memory by that of this host"):
        assert said in guessed.stderr


def test_inspect_raw_prints_a_recording_of_nvml(run: Run) -> None:
    recording = json.loads(run("inspect", "--raw", "--simulated-gpus", "1xT4").stdout)

    assert recording["gpus"][0]["name"] == "Tesla T4"


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
def test_scripts_have_every_verb_and_its_flags(run: Run, shell: str) -> None:
    script = run("completion", shell)

    words = [verb.name for verb in cli.VERBS] + ["kubeconfig", "namespace", "node-name"]
    assert (script.returncode, [word for word in words if word not in script.stdout]) == (0, [])


@pytest.mark.process
def test_bash_completes_verbs_and_flags(run: Run) -> None:
    program = f"""
        {run("completion", "bash").stdout}
        function_name=$(complete -p tensorfusion-dra | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        ask() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            "$function_name"
            echo "${{COMPREPLY[@]}}"
        }}
        ask tensorfusion-dra wh
        ask tensorfusion-dra top --wa
    """

    completed = subprocess.check_output(["bash", "-c", program], text=True)

    assert completed.split() == ["why", "--watch"]


def test_plugin_is_on_path_under_the_name_that_kubectl_looks_for() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

    assert scripts["kubectl-tensorfusion"] == "tensorfusion_dra.cli:main"
    assert scripts["kubectl_complete-tensorfusion"] == "tensorfusion_dra.cli:complete"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], [*(verb.name for verb in cli.VERBS if not verb.serves), ":4"]),
        (["co"], ["convert", "cordon", "completion", ":4"]),
        (["top", "--na"], ["--namespaces", "--namespace", ":4"]),
        (["top", "--watch", "--na"], ["--namespaces", "--namespace", ":4"]),
        (["top", "-o", ""], ["table", "wide", "json", "yaml", ":4"]),
        (["why", "-f", ""], [":0"]),
        (["completion", "z"], ["zsh", ":4"]),
        (["nothing", ""], [":4"]),
        (["why", "-n", "b", "x"], [":4"]),
        (["cel", "ch"], ["check", ":4"]),
        (["cel", "explain", "--re"], ["--request", ":4"]),
    ],
)
def test_kubectl_completes_verbs_flags_and_values(
    words: list[str], expected: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-tensorfusion", *words])

    cli.complete()

    assert capsys.readouterr().out.splitlines() == expected


def test_plugin_shows_its_own_name(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-tensorfusion"])

    with pytest.raises(SystemExit):
        cli.main(["why", "--help"])

    assert capsys.readouterr().out.startswith("usage: kubectl tensorfusion why")


ADVANCED = markdown.text(ROOT / "docs" / "advanced.md")
USE = markdown.text(ROOT / "docs" / "use.md")
EXTEND = markdown.text(ROOT / "docs" / "extend.md")

SECONDS = re.compile(r"\b[0-9]+\.[0-9] s\b")


def shown(document: str, start: str) -> Command:
    """Return the only command in a document that starts with this text."""
    (found,) = [each for each in markdown.commands(document) if each.line.startswith(start)]
    return found


@pytest.mark.process
def test_the_readmes_show_what_the_demo_prints() -> None:
    ended = command("simulate")

    assert ended.stderr == ""
    for file in ("README.md", "README.zh-CN.md"):
        demo = shown(markdown.text(ROOT / file), "make demo")
        printed = (SECONDS.sub("N s", text) for text in ("\n".join(demo.output), ended.stdout))
        assert demo.line == "make demo"
        assert len(set(map(str.strip, printed))) == 1


def test_the_users_page_shows_what_cel_prints(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    slices = tmp_path / "slices.yaml"
    slices.write_text(yaml.safe_dump_all(two_nodes()), encoding="utf-8")

    for verb, flags in (("translate", []), ("explain", ["--slices", str(slices)])):
        documented = shown(USE, f"tensorfusion-dra cel {verb}")
        printed = run(*shlex.split(documented.line)[1:], *flags).stdout
        assert markdown.is_shown(documented.output, printed.splitlines())


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
    return subprocess.run(
        [
            *(sys.executable, "-m", "tensorfusion_dra", "inspect", "--providers"),
            *("--node-name", "node-01", "--simulated-gpus", "2xT4"),
            *(*host_folders(site), *arguments),
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
    assert "\x1b" not in shown.stdout
    for line in (
        r"attributes +rack +racks 1\.0 +ok .* example\.com/rack on 2 devices$",
        r"health +fans +racks 1\.0 +ok .* fan-stopped on 1 device$",
        "left out: rack: gpu-.* model: found a name of the driver's domain, expected <your ",
        "failed: broken: GPU-",
    ):
        assert re.search(line, shown.stdout, re.MULTILINE), line


@pytest.mark.process
def test_document_says_who_failed_and_who_is_left_out_and_has_no_line_of_a_provider(
    tmp_path: Path,
) -> None:
    functions = {"alpha": "rack", "beta": "other", "broken": "broken", "off": "rack", "z": "loud"}
    entries = {name: f"racks:{function}" for name, function in functions.items()}
    install(tmp_path, "racks", {ATTRIBUTES: entries}, CODE)

    shown = inspected(tmp_path, "-o", "json", "--disable-provider", "off,gone")

    found = json.loads(shown.stdout)
    alpha, beta, broken, off, loud = (
        each for each in found["providers"] if each["package"] == "racks 1.0"
    )
    assert (shown.returncode, found["unknownDisabled"]) == (1, ["gone"])
    assert (alpha["state"], len(alpha["given"])) == ("ok", 2)
    assert alpha["seconds"] >= 0
    assert (beta["state"], loud["state"]) == ("refused", "refused")
    assert {each["reason"] for refused in beta["refused"].values() for each in refused} == {
        "provider alpha gave this name first"
    }
    disabled = "disabled by the setting disable-provider"
    assert (off["state"], off["reason"]) == ("unused", disabled)
    assert (broken["state"], len(broken["errors"])) == ("failed", 2)
    for line in ("a line of Python's", "a line of a child's"):
        assert line in shown.stderr
