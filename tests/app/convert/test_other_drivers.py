"""The verb `convert`: claims that are written for the DRA drivers of NVIDIA and HAMi."""

from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra import cli
from tensorfusion_dra.app.convert.command import convert
from tensorfusion_dra.app.convert.other_drivers import CLASSES
from tests.support.selecting import A

NVIDIA, HAMI = CLASSES
TEMPLATE: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly: # a share
          deviceClassName: CLASS
          selectors:
          - cel:
              expression: |-
                device.driver == "CLASS" && N.productName.contains("A100") &&
                M["uuid"] != "GPU-1" && N.?architecture.orValue("") == "Ampere" &&
                device.capacity["CLASS"].memory.compareTo(quantity("40Gi")) >= 0
          capacity:
            requests:
              # of each card
              memory: 10Gi
      - name: one-of
        firstAvailable:
        - {name: a, deviceClassName: CLASS, capacity: {requests: {CLASS/memory: 1Gi}}}
        - {name: b, deviceClassName: nic.example.com, capacity: {requests: {memory: 1Gi}}}
      constraints:
      - matchAttribute: CLASS/productName
      - distinctAttribute: CLASS/uuid
      - matchAttribute: resource.kubernetes.io/pcieRoot
"""
CONVERTED: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly: # a share
          deviceClassName: tensor-fusion.ai
          selectors:
          - cel:
              expression: |-
                device.driver == "DRIVER" && A.product_name.contains("A100") &&
                A.uuid != "GPU-1" && A.?architecture.orValue("") == "Ampere" &&
                device.capacity["DRIVER"].vram.compareTo(quantity("40Gi")) >= 0
          capacity:
            requests:
              # of each card
              vram: 10Gi
      - name: one-of
        firstAvailable:
        - {name: a, deviceClassName: tensor-fusion.ai, capacity: {requests: {vram: 1Gi}}}
        - {name: b, deviceClassName: nic.example.com, capacity: {requests: {memory: 1Gi}}}
      constraints:
      - matchAttribute: DRIVER/product_name
      - distinctAttribute: DRIVER/uuid
      - matchAttribute: resource.kubernetes.io/pcieRoot
"""


def template(name: str) -> str:
    own = TEMPLATE.replace("N.", 'device.attributes["CLASS"].')
    return own.replace("M[", "device.attributes['CLASS'][").replace("CLASS", name)


@pytest.mark.parametrize("name", CLASSES)
def test_a_claim_of_another_driver_becomes_one_of_this_driver(name: str) -> None:
    converted = convert(template(name), classes=[name])

    expected = CONVERTED.replace(" A.", f" {A}.")
    assert converted.text == expected.replace("DRIVER", "tensor-fusion.ai.dra-driver")
    assert converted.problems == ()
    assert [reason.line for reason in converted.reasons] == [9, 12, 19, 22, 22, 25, 26]
    assert convert(converted.text, classes=CLASSES).reasons == ()
    others = [each for each in CLASSES if each != name]
    assert convert(template(name)).text == convert(template(name), classes=others).text
    assert convert(template(name)).text == template(name)


CLAIM: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        PART
    constraints:
    - ENTRY
    config:
    - opaque: {driver: OWNER}
"""


@pytest.mark.parametrize(
    ("part", "entry", "owner", "line", "problem"),
    [
        (
            *("capacity: {requests: {cores: 30}}", "{}", "x"),
            *(9, "cores: expected an amount of tflops, not a part of a card"),
        ),
        (
            *("capacity: {requests: {memory: 1Gi, vram: 1Gi}}", "{}", "x"),
            *(9, "memory becomes vram; name tflops too, or the claim takes all compute of a card"),
        ),
        (
            "selectors: [{cel: {expression: "
            """'device.attributes["gpu.nvidia.com"].brand == ""'}}]""",
            *("{}", "x", 9),
            "brand: found no such attribute or capacity of tensor-fusion.ai.dra-driver",
        ),
        (
            "selectors: [{cel: {expression: '\"gpu.nvidia.com\" in device.attributes'}}]",
            *("{}", "x", 9, "expected attributes of tensor-fusion.ai.dra-driver"),
        ),
        (
            *("count: 2", "{matchAttribute: gpu.nvidia.com/type}", "x", 11),
            "type: found no such attribute or capacity of tensor-fusion.ai.dra-driver",
        ),
        (
            *("count: 2", "{}", "gpu.nvidia.com", 13),
            "parameters of gpu.nvidia.com have no effect here: remove them, or write a GpuShare",
        ),
    ],
)
def test_what_this_driver_cannot_say_is_named_and_stays(
    part: str, entry: str, owner: str, line: int, problem: str
) -> None:
    text = CLAIM.replace("PART", part).replace("ENTRY", entry).replace("OWNER", owner)

    converted = convert(text, classes=CLASSES)

    class_line = "deviceClassName: gpu.nvidia.com"
    assert converted.text == text.replace(class_line, "deviceClassName: tensor-fusion.ai")
    assert [(found.line, found.text) for found in converted.problems] == [(line, problem)]


@pytest.mark.parametrize(
    ("name", "what"),
    [("mig.nvidia.com", "MIG devices"), ("vfio.gpu.nvidia.com", "virtual machines")],
)
def test_classes_of_nvidias_driver_without_a_counterpart_are_named_and_stay(
    name: str, what: str
) -> None:
    text = CLAIM.replace("gpu.nvidia.com", name).replace("PART", "count: 1").replace("ENTRY", "{}")

    converted = convert(text, classes=[NVIDIA])

    problem = (
        f"{name}: found {what}, which this driver does not have, expected tensor-fusion.ai and "
        "amounts of tflops and vram"
    )
    assert converted.text == text
    assert [(found.line, found.text) for found in converted.problems] == [(8, problem)]
    assert convert(text, classes=[HAMI]).problems == ()
    assert convert(text).problems == ()


REQUIRED: Final = "deviceClassName is required: tensor-fusion.ai"
BECOMES: Final = "gpu.nvidia.com becomes tensor-fusion.ai"


@pytest.mark.parametrize(
    ("devices", "reasons"),
    [
        ("[]", []),
        ("{requests: {}, constraints: x, config: [x, {opaque: x}]}", []),
        ("{requests: [x, {exactly: x, firstAvailable: {}}]}", []),
        ("{constraints: [{matchAttribute: {a: b}}, {distinctAttribute: }]}", []),
        ("{requests: [{exactly: {deviceClassName: {gpu.nvidia.com: x}}}]}", []),
        ("{requests: [{exactly: {capacity: {requests: {memory: 1Gi}}}}]}", [REQUIRED]),
        (
            "{requests: [{exactly: {deviceClassName: gpu.nvidia.com, selectors: x}}]}",
            [BECOMES],
        ),
        (
            "{requests: [{exactly: {deviceClassName: gpu.nvidia.com, capacity: [x]}}]}",
            [BECOMES],
        ),
    ],
)
def test_claims_of_any_shape_are_read(devices: str, reasons: list[str]) -> None:
    text = f"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nspec: {{devices: {devices}}}\n"

    converted = convert(text, classes=CLASSES)

    assert [reason.text for reason in converted.reasons] == reasons
    assert converted.problems == ()


TWO: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
spec:
  devices:
    requests:
    - name: a
      exactly: &share {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 1Gi}}}
    - name: b
      exactly: *share
"""


def test_a_request_with_an_alias_is_converted_once() -> None:
    converted = convert(TWO, classes=CLASSES)

    expected = TWO.replace("gpu.nvidia.com", "tensor-fusion.ai").replace("memory", "vram")
    assert converted.text == expected
    assert converted.problems == ()


def test_classes_are_chosen_by_a_flag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(template(HAMI))

    code = cli.main(["convert", "-f", str(file), "--class", NVIDIA, "--class", HAMI])

    assert (code, capsys.readouterr().out) == (0, convert(template(HAMI), classes=[HAMI]).text)
