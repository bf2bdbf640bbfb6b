"""The verb `cel`: translations, checks, explanations and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import SLICES, Client
from tensorfusion_dra.core import names
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpus
from tests.support.cel_command import A100, Json, child, run, slice_of_devices, squeezed, two_nodes
from tests.support.hostile_selectors import LISTS
from tests.support.selecting import A


def test_translate_prints_the_translation_or_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "selector.cel"
    file.write_text(f"{A100} && // é\n  true\n")

    assert run(capsys, "translate", A100) == (0, f'{A}.model == "A100"\n', "")
    of_file = f'{A}.model == "A100" && // é\n  true\n'
    assert run(capsys, "translate", "-f", str(file)) == (0, of_file, "")
    document = json.loads(run(capsys, "translate", "-o", "json", A100)[1])
    assert document == {"expression": f'{A}.model == "A100"', "changed": True}


@pytest.mark.process
def test_translate_reads_stdin() -> None:
    assert child("translate", "-", stdin="true\n") == (0, "true\n", "")
    assert child("translate", "-f", "-", stdin="true") == (0, "true\n", "")


FILES = {"pod": "kind: Pod", "no-yaml": "{", "slice": "kind: ResourceSlice"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["translate"], "expression: found none"),
        (["translate", "true", "-f", "x"], "expression: found one, and a file"),
        (["translate", "-f", "/nowhere"], "/nowhere: No such file"),
        (["translate", 'device.attributes["quota"]'], "1:19: found attribute 'quota'"),
        (["translate", "a ="], "1:3: found '='"),
        (["translate", "device.nosuch == 'x'"], "1:7: undefined field 'nosuch'"),
        (
            ["explain", "device.foo", "--slices", "/nowhere"],
            "compilation failed: ERROR: <input>:1:7: undefined",
        ),
        (["explain", "true", "--slices", "/nowhere"], "/nowhere: No such file"),
        (["explain", "true", "--kubeconfig", "/nowhere"], "kubeconfig /nowhere"),
        (["explain", "true", "--request", "speed=1"], "request: found 'speed=1'"),
        (["explain", "true", "--request", "vram=1 Gi"], "request: vram: found '1 Gi'"),
        (["explain", "true", "--slices", "pod"], "found no ResourceSlice"),
        (["explain", "true", "--slices", "no-yaml"], "slices "),
        (
            ["explain", "true", "--slices", "slice"],
            "expected ResourceSlices as the API server shows them",
        ),
    ],
)
def test_bad_input_is_a_one_line_error_with_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    expected: str,
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    code, out, err = run(capsys, *arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tensorfusion-dra: ")
    assert expected in err


@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        (
            [f'{A}.model == "A100"'],
            0,
            ["syntax ok", "length 64 of at most 10240 bytes", "types ok"],
        ),
        ([A100], 0, ["guide's CEL found; Kubernetes accepts only its translation", "types ok"]),
        (["--as-is", A100], 1, ["types 1:28: found no matching overload for '_==_'"]),
        (["true &&\n  1 +"], 1, ["syntax 2:6: found the end, expected a value"]),
        (["true &&\n  device.foo"], 1, ["types 2:9: undefined field 'foo'"]),
        (["1 + 1"], 1, ["types must evaluate to bool or the unknown type, not int"]),
        ([f"{A}.model > 5"], 1, ["types 1:56: found no matching overload for '_>_'"]),
        (
            ['device.capacity["tflops"].AsApproximateFloat64() == 312'],
            1,
            ["types 1:76: found no matching overload for '_==_'"],
        ),
        (
            ['device.attributes["node_total_tflops"] > 312'],
            1,
            ["guide's CEL 1:1: found a string that holds an amount as operand of >"],
        ),
        ([LISTS], 1, ["types 1:198: found more than 20000 steps to evaluate, expected fewer"]),
        (["'a'.endsWith(5)"], 1, ["types 1:13: found no matching overload for 'endsWith'"]),
        (
            ['device.capacity["tflops"] >= 100'],
            1,
            ["guide's CEL 1:1: found a Quantity as operand of >="],
        ),
        (["true //" + "x" * 10_240], 1, ["length 10247 of at most 10240 bytes"]),
        (
            [f'{A}.modle == "A100"'],
            1,
            [
                "types ok",
                f"names {names.DRIVER} has no attributes modle, unless",
                "it has pool_name, ",
            ],
        ),
        (
            [f'"vrams" in device.capacity["{names.DRIVER}"]'],
            1,
            [f"names {names.DRIVER} has no capacity vrams, unless", "it has tflops, vram, "],
        ),
        (['device.attributes["example.com"].rack == 1'], 0, ["types ok"]),
        (
            [f'{A}.model.find("A") == "A"'],
            1,
            ["types not checked: Kubernetes has find, the local CEL library does not"],
        ),
    ],
)
def test_check_reports_the_errors_of_the_api_server(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, lines: list[str]
) -> None:
    ended, out, err = run(capsys, "check", *arguments)

    first, *shown = squeezed(out)
    assert (ended, err, first) == (code, "", "CHECK RESULT")
    assert [line for line in lines if not any(line in one for one in shown)] == []


def test_check_cuts_no_error_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")

    _, out, _ = run(capsys, "check", "1 +")

    assert "found the end, expected a value" in out


def test_check_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", "-o", "json", "1 +")

    assert json.loads(out) == {
        "checks": [{"check": "syntax", "ok": False, "text": "1:4: found the end, expected a value"}]
    }


def claim_on_device(device: str, consumed: dict[str, str] | None = None) -> Json:
    share = {"shareID": "11111111-1111-1111-1111-111111111111", "consumedCapacity": consumed}
    result: Json = {
        "request": "gpu",
        "driver": names.DRIVER,
        "pool": "default/node-01",
        "device": device,
        **(share if consumed else {}),
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"claim-{device}", "namespace": "default"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def written(folder: Path, *documents: Any) -> str:
    """Write a file with these documents; return its path."""
    file = folder / "slices.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


@pytest.fixture
def slices(tmp_path: Path) -> str:
    return written(tmp_path, {"apiVersion": "v1", "kind": "List", "items": two_nodes()})


def test_explain_shows_each_part_with_the_values_found(
    capsys: pytest.CaptureFixture[str], slices: str
) -> None:
    text = f'({A100} || device.attributes["model"] == "H100") && device.attributes["qos"] == "high"'

    code, out, err = run(capsys, "explain", "--slices", slices, text)

    shown = squeezed(out)
    assert (code, err) == (1, "")
    for line in (
        f"0 of 4 devices of {names.DRIVER} match; pools: 2",
        "3 any of",
        f'3 model: A100 (3), T4 (1) {A}.model == "A100"',
        f'0 model: A100 (3), T4 (1) {A}.model == "H100"',
        f'1 qos: medium (3), high (1) {A}.qos == "high"',
    ):
        assert line in shown
    first, reason, _, *reasons = shown[shown.index("Left out") + 1 :]
    assert first.startswith("default/node-01: gpu-8f3a")
    assert reason == f'{A}.qos == "high" (qos medium)'
    assert reasons == [f'{A}.model == "A100" (model T4)', f'{A}.model == "H100" (model T4)']


def test_explain_exits_with_0_if_a_device_matches(
    capsys: pytest.CaptureFixture[str], slices: str
) -> None:
    code, out, _ = run(capsys, "explain", "--slices", slices, "-o", "json", A100)

    document = json.loads(out)
    as_yaml = run(capsys, "explain", "--slices", slices, "-o", "yaml", A100)[1]
    assert yaml.safe_load(as_yaml) == document
    assert (code, document["matching"]) == (0, 3)
    assert [device["matches"] for device in document["devices"]] == [True, True, True, False]
    assert document["devices"][3]["reasons"] == [f'{A}.model == "A100" (model T4)']
    assert document["term"]["values"] == {"model": {"A100": 3, "T4": 1}}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            f"{A}.rack == 1",
            [
                "On 4 of them the selector fails, so no node gets its pods: no such key: rack",
                f"{A}.rack == 1: no such key: rack (rack missing)",
            ],
        ),
        (
            f'cel.bind(a, {A}, !(a.model == "A100") && a.node_total_gpus >= 3)',
            [
                '1 !(a.model == "A100")',
                "3 node_total_gpus: 3 (3), 1 (1) a.node_total_gpus >= 3",
                '!(a.model == "A100") (model A100)',
            ],
        ),
    ],
    ids=["selector that fails", "negation and binding"],
)
def test_explain_shows_why_no_device_matches(
    capsys: pytest.CaptureFixture[str], slices: str, text: str, lines: list[str]
) -> None:
    code, out, _ = run(capsys, "explain", "--slices", slices, text)

    assert code == 1
    assert [line for line in lines if line not in squeezed(out)] == []


def test_explain_checks_a_requested_capacity_of_another_package(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = written(tmp_path, *two_nodes())
    asked = ("--request", "tflops=1,example.com/seats=2")

    code, out, _ = run(capsys, "explain", "true", "--slices", file, "-o", "json", *asked)

    refusals = {item["refusal"] for item in json.loads(out)["devices"]}
    assert (code, refusals) == (1, {"has no capacity example.com/seats"})


def test_explain_checks_requested_amounts_against_free_capacity(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, second, third = (device.name for device in published_devices(*gpus(3)))
    taken = [claim_on_device(first, {"tflops": "300", "vram": "1Gi"}), claim_on_device(second)]
    file = written(tmp_path, *two_nodes(), *taken)

    code, out, _ = run(
        capsys, "explain", "true", "--slices", file, "-o", "json", "--request", "tflops=100"
    )

    refusals = {item["device"]: item["refusal"] for item in json.loads(out)["devices"]}
    assert code == 0
    assert [refusals[device] for device in (first, second, third)] == [
        "tflops 300 of 312 taken, 100 more do not fit",
        "a claim has it exclusively",
        None,
    ]


@pytest.mark.parametrize(
    ("release", "refusal"),
    [
        ("1.36", "has no capacity tensor-fusion.ai.dra-driver/tflops"),
        ("1.37", "has no capacity tensor-fusion.ai.dra-driver/tflops"),
        ("1.38", None),
        ("", None),
    ],
)
def test_explain_follows_the_rules_of_a_release(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, release: str, refusal: str | None
) -> None:
    file = written(tmp_path, *two_nodes())
    asked = [
        "--request",
        f"{names.DRIVER}/tflops=1",
        *["--kubernetes", release][: 2 * bool(release)],
    ]

    _, out, _ = run(capsys, "explain", "true", "--slices", file, "-o", "json", *asked)

    found = json.loads(out)
    assert {item["refusal"] for item in found["devices"]} == {refusal}
    assert found["release"] == (release or "1.38")


def test_explain_counts_the_newest_generation_only_and_mentions_taints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = slice_of_devices("node-01", published_devices(*gpus(3)))
    new = slice_of_devices("node-01", published_devices(*gpus(1)), generation=2)
    new["spec"]["devices"][0]["taints"] = [{"key": "broken", "effect": "NoSchedule"}]

    _, out, _ = run(capsys, "explain", "true", "--slices", written(tmp_path, old, new))

    assert "1 of 1 devices" in out
    assert "1 of them only for claims that tolerate their taints" in out


def test_explain_reads_slices_from_the_cluster(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ApiServer(release=36) as server:
        client = Client(server.url)
        for document in two_nodes():
            client.create(SLICES, document)
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

        code, out, err = run(capsys, "explain", A100, "--request", "tflops=100,vram=16Gi")
        as_json = run(capsys, "explain", A100, "-o", "json")[1]

    assert (code, err) == (0, "")
    assert json.loads(as_json)["release"] == "1.36"
    assert f"3 of 4 devices of {names.DRIVER} match; pools: 2" in out
    assert "request tflops=100, vram=16Gi" in out
