"""The verb `convert`: requests, expressions and other parts in any style of YAML, and refusals."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import CLAIMS, CLASSES, GPUPOOLS, NODES, PODS, TEMPLATES, Client
from tensorfusion_dra import cli
from tensorfusion_dra.app.convert.command import Converted, convert
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.scheduling import cel_evaluation
from tests.support import forks
from tests.support.selecting import A
from tests.support.tally import examples
from tests.support.yaml_bombs import BOMBS

CLAIM: Final = """\
apiVersion: resource.k8s.io/{version}
kind: ResourceClaim
metadata:
  name: a
spec:
  devices:
    requests:
"""


def claim_text(requests: str, version: str = "v1") -> str:
    """Return a claim with these requests, which are given without indentation."""
    return (
        CLAIM.format(version=version)
        + textwrap.indent(textwrap.dedent(requests).strip(), "    ")
        + "\n"
    )


def reasons_with_lines(converted: Converted) -> list[str]:
    """Return the reasons for all changes, each with its line."""
    return [f"{reason.line}: {reason.text}" for reason in converted.reasons]


def requests(converted: Converted) -> str:
    """Return the requests of a claim, without indentation."""
    return textwrap.dedent(converted.text.partition("requests:\n")[2]).strip()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            """
            - name: gpu   # the first
              allocationMode: ExactCount # as many
              exactly:
                deviceClassName: x
            """,
            """
            - name: gpu   # the first
              exactly:
                allocationMode: ExactCount # as many
                deviceClassName: x
            """,
            id="into a block that is there",
        ),
        pytest.param(
            """
            - deviceClassName: x # first
              name: gpu
              count: 2

              selectors:
              - cel:
                  expression: "true"
            """,
            """
            - exactly:
                deviceClassName: x # first
                count: 2

                selectors:
                - cel:
                    expression: "true"
              name: gpu
            """,
            id="into a block that is not there, from the dash of the list",
        ),
        pytest.param(
            "- {name: gpu, deviceClassName: x, count: 2}",
            "- {name: gpu, exactly: {deviceClassName: x, count: 2}}",
            id="in brackets",
        ),
        pytest.param(
            "- {deviceClassName: x, name: gpu, exactly: {count: 2}, allocationMode: ExactCount}",
            "- {name: gpu, exactly: {deviceClassName: x, allocationMode: ExactCount, count: 2}}",
            id="from all around into brackets",
        ),
        pytest.param(
            """
            - name: gpu
              deviceClassName: x
              exactly: {}
            """,
            """
            - name: gpu
              exactly:
                deviceClassName: x
            """,
            id="into empty brackets",
        ),
        pytest.param(
            """
            - name: gpu
              exactly:
                deviceClassName: x
                selector:   # which
                  cel:
                    expression: 'true'
                count: 1
            """,
            """
            - name: gpu
              exactly:
                deviceClassName: x
                selectors:  # which
                - cel:
                    expression: 'true'
                count: 1
            """,
            id="a selector becomes a list",
        ),
        pytest.param(
            "- {name: a, exactly: {deviceClassName: x, selector: {cel: {expression: 'true'}}}}",
            "- {name: a, exactly: {deviceClassName: x, selectors: [{cel: {expression: 'true'}}]}}",
            id="a selector in brackets too",
        ),
        pytest.param(
            """
            - name: gpu
              exactly:
                deviceClassName: x
                selector:
                - cel: {expression: 'true'}
            """,
            """
            - name: gpu
              exactly:
                deviceClassName: x
                selectors:
                - cel: {expression: 'true'}
            """,
            id="a list has the wrong name only",
        ),
        pytest.param(
            """
            - name: gpu
              firstAvailable:
              - name: one
                count: 2
              - {name: two}
            """,
            """
            - name: gpu
              firstAvailable:
              - deviceClassName: tensor-fusion.ai
                name: one
                count: 2
              - {deviceClassName: tensor-fusion.ai, name: two}
            """,
            id="every choice has a class",
        ),
    ],
)
def test_a_requests_entries_are_moved_and_completed(before: str, after: str) -> None:
    converted = convert(claim_text(before))

    assert requests(converted) == textwrap.dedent(after).strip()
    assert converted.problems == ()
    assert converted.reasons
    assert convert(converted.text).text == converted.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("expression: {0}", "expression: {1}"),
        ("expression: '{0}'", "expression: '{1}'"),
        ("expression: {0} # why", "expression: {1} # why"),
        ('expression: "{0}"', 'expression: "{1}"'),
        ("expression: |\n  {0} &&\n\n    true // \n", "expression: |\n  {1} &&\n\n    true // \n"),
        ("expression: >-\n  {0}\n  &&\n  true", "expression: >-\n  {1} && true"),
        ("expression: true &&\n  {0}", "expression: true && {1}"),
        ("expression: '{0} ||\n  ''a'' == \"b\"'", "expression: '{1} || ''a'' == \"b\"'"),
    ],
)
def test_an_expression_is_translated_in_every_scalar_style(before: str, after: str) -> None:
    request = """
    - name: gpu
      exactly:
        deviceClassName: x
        selectors:
        - cel:
    """
    begin = textwrap.dedent(request).strip() + "\n"
    both = ('device.attributes["model"] == "A100"', f'{A}.model == "A100"')
    if '"{0}"' in before:
        both = (both[0].replace('"', r"\""), both[1].replace('"', r"\""))
    old, new = (begin + textwrap.indent(text.format(*both), " " * 8) for text in (before, after))

    converted = convert(claim_text(old))

    assert requests(converted) == new.strip()
    assert reasons_with_lines(converted) == [
        f"{_line(old)}: user guide's CEL, translated for Kubernetes"
    ]


def _line(text: str) -> int:
    return CLAIM.count("\n") + 1 + text.strip()[: text.index("expression")].count("\n")


def test_a_node_with_an_alias_is_changed_once() -> None:
    text = claim_text(
        """
        - name: a
          exactly: &one
            selector: {cel: {expression: 'true'}}
        - name: b
          exactly: *one
        """
    )

    converted = convert(text)

    assert converted.text.count("deviceClassName") == converted.text.count("selectors: [{") == 1


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize("quotes", ["", "'", '"'])
def test_older_versions_become_v1(version: str, quotes: str) -> None:
    text = f"kind: DeviceClass\napiVersion: {quotes}resource.k8s.io/{version}{quotes}\n"

    converted = convert(text)

    assert converted.text == text.replace(version, "v1")
    assert reasons_with_lines(converted) == [
        f"2: resource.k8s.io/{version} is not served by default since 1.34: resource.k8s.io/v1"
    ]


def test_a_templates_label_is_added_to_the_metadata_in_its_spec() -> None:
    text = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {labels: {tensor-fusion.ai/resource-claim-template: "true"}}
spec:
  metadata: {}
"""
    labels = "metadata:\n    labels:\n      "
    own = 'tensor-fusion.ai/resource-claim-template: "true"'

    for before, after in (
        ("metadata: {}", f"{labels}{own}"),
        (f"{labels}a: b", f"{labels}{own}\n      a: b"),
    ):
        converted = convert(text.replace("metadata: {}", before))
        assert converted.text == text.replace("metadata: {}", after)


def test_windows_line_breaks_are_kept() -> None:
    text = claim_text(
        "- name: gpu\n  count: 1\n  selector:\n    cel: {expression: 'true'}", "v1beta1"
    )

    converted = convert(text.replace("\n", "\r\n"))

    assert converted.text == convert(text).text.replace("\n", "\r\n")


def test_annotations_in_pod_templates_are_converted() -> None:
    text = """\
kind: Deployment
spec:
  template:
    metadata:
      annotations: {tensor-fusion.ai/dra-cel-expression: 'device.attributes["qos"] == "low"'}
"""

    assert convert(text).text == text.replace('device.attributes["qos"]', f"{A}.qos")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            claim_text(
                "- {name: a, exactly: {deviceClassName: x, selectors: [{cel: {expression: a =}}]}}"
            ),
            "8: expression 1:3: found '='",
        ),
        (
            claim_text("- {name: a, count: 1, exactly: {deviceClassName: x, count: 2}}"),
            "8: count: expected it only in exactly",
        ),
        (
            claim_text("- {name: a, allocationMode: All, firstAvailable: []}"),
            "8: allocationMode: expected it only in exactly, or in each of firstAvailable",
        ),
        (
            claim_text("- {name: a, exactly: {deviceClassName: x, selector: {}, selectors: []}}"),
            "8: selector beside selectors: expected selectors alone",
        ),
        (claim_text("- {name: a, count: 1, exactly: }"), "8: count: expected it only in exactly"),
        (
            claim_text("- {}", "v1alpha3"),
            "1: apiVersion: found resource.k8s.io/v1alpha3, expected one of resource.k8s.io/v1",
        ),
        (
            "apiVersion: resource.k8s.io/v1beta2\nkind: ResourceSlice\n",
            "2: a ResourceSlice is not converted: the node plugin publishes its own",
        ),
    ],
)
def test_an_error_that_cannot_be_converted_is_reported_with_its_line(
    text: str, problem: str
) -> None:
    (found,) = convert(text).problems

    assert f"{found.line}: {found.text}".startswith(problem)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(("a: 1\n---\nb: \x00", "line 3: "), ("a: 1\n---\n*nothing", "line 3: ")),
        *(("a: [", "line 1: "), ("a: 1\n---\nb: c: d", "line 3: "), ("\t- a", "line 1: ")),
        ("a: 1\n---\nb: 1\nc: 2\nb: 3\n", 'line 5: found duplicate key "b"'),
    ],
)
def test_invalid_yaml_is_bad_input(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"^YAML: {reason}"):
        convert(text)


@pytest.mark.parametrize(("text", "reason"), BOMBS.values(), ids=BOMBS)
def test_what_would_take_long_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"^YAML: {reason}"):
        convert(text)


def test_aliases_as_people_use_them_are_converted() -> None:
    text = "a: &a {x: 1}\n" + "".join(f"b{i}: {{<<: *a, c: [*a]}}\n" for i in range(200))

    assert convert(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "---\n---\n",
        "text",
        "- a\n- {b: c}\n",
        "1: {2: 3}",
        "[" * 100 + "a" + "]" * 100,
    ],
)
def test_documents_that_are_not_objects_stay_unchanged(text: str) -> None:
    assert convert(text) == Converted(text=text, reasons=(), problems=())


SCALARS = st.sampled_from(
    (
        *(None, True, 1, "", "gpu", "resource.k8s.io/v1beta1", "40Gi", "node-01", "many"),
        *('device.attributes["model"] == "A100" &&\ntrue\n', "device.attributes['qos']", "1 +"),
        *("a\nb\n", "#"),
    )
)
KEYS = st.sampled_from(
    (
        *("name", "exactly", "firstAvailable", "selector", "selectors", "cel", "expression"),
        *("count", "deviceClassName", "allocationMode", "capacity", "requests", "metadata"),
        *("labels", "tensor-fusion.ai/resource-claim-template", "items", "vram"),
        "tensor-fusion.ai/dra-cel-expression",
    )
)
ANYTHING = st.recursive(
    SCALARS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=4),
    max_leaves=12,
)
REQUEST = st.dictionaries(KEYS, ANYTHING, max_size=6)


def any_claim(requests: Any) -> dict[str, Any]:
    return {"kind": "ResourceClaim", "spec": {"devices": {"requests": requests}}}


def any_template(requests: Any, labels: Any) -> dict[str, Any]:
    spec = {"spec": {"devices": {"requests": requests}}}
    return {"kind": "ResourceClaimTemplate", "metadata": {"labels": labels}, "spec": spec}


OBJECTS = st.one_of(
    st.builds(any_claim, st.lists(REQUEST, max_size=2) | ANYTHING),
    st.builds(any_template, st.lists(REQUEST, max_size=2), REQUEST),
    ANYTHING.map(lambda spec: {"kind": "DeviceClass", "spec": spec}),
    ANYTHING,
)
VERSIONS = st.sampled_from(["v1", "v1beta1", "v1beta2"])
LISTED = st.lists(st.tuples(OBJECTS, VERSIONS), min_size=1, max_size=2)


def written(listed: list[tuple[Any, str]], *, flow: bool | None, indent: int) -> str:
    documents = [
        {"apiVersion": f"resource.k8s.io/{version}", **item} if isinstance(item, dict) else item
        for item, version in listed
    ]
    return yaml.safe_dump_all(
        documents, default_flow_style=flow, indent=indent, sort_keys=False, width=60
    )


@settings(max_examples=examples(300))
@given(LISTED, st.sampled_from([True, False, None]), st.sampled_from([2, 4]))
def test_any_yaml_is_converted_and_a_second_conversion_changes_nothing(
    listed: list[tuple[Any, str]], flow: bool | None, indent: int
) -> None:
    text = written(listed, flow=flow, indent=indent)

    converted = convert(text)
    again = convert(converted.text)

    assert len(list(yaml.safe_load_all(converted.text))) == len(listed)
    assert again.text == converted.text
    assert again.reasons == ()
    assert {problem.text for problem in again.problems} == {p.text for p in converted.problems}
    assert bool(converted.reasons) == (converted.text != text)


FOLDER = Path(__file__).parent / "guide"
REFUSED = ("4.1.1-fragment", "6.2.1-slice")
"""A key that is set twice, and a slice, which the node plugin publishes itself."""
FILES = [file for file in sorted(FOLDER.glob("*.yaml")) if file.stem not in REFUSED]
UNCHANGED = [
    file for file in FILES if not re.search("resource.k8s.io|dra-cel-expression", file.read_text())
]
RESOURCES = {
    "Pod": PODS,
    "ResourceClaim": CLAIMS,
    "ResourceClaimTemplate": TEMPLATES,
    "DeviceClass": CLASSES,
    "GPUPool": GPUPOOLS,
}
Json = dict[str, Any]


@pytest.fixture
def client() -> Iterator[Client]:
    with ApiServer(tensor_fusion=True, check_expression=cel_evaluation.check_expression) as server:
        found = Client(server.url)
        found.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}})
        yield found


def apply(client: Client, text: str) -> list[Json]:
    """Create all objects of a text and return them as stored."""
    stored = []
    for document in yaml.safe_load_all(text):
        if resource := RESOURCES.get(document.get("kind")):
            if resource.namespaced:
                document["metadata"]["namespace"] = "default"
            stored.append(client.create(resource, document))
    return stored


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_converted_yaml_is_accepted_by_the_api_server(client: Client, file: Path) -> None:
    converted = convert(file.read_text())

    stored = apply(client, converted.text)

    assert convert(converted.text).text == converted.text
    assert len(stored) >= ("apiVersion: " in converted.text) - ("Config" in converted.text)


@pytest.mark.parametrize("file", UNCHANGED, ids=lambda file: file.stem)
def test_accepted_yaml_stays_byte_for_byte(file: Path) -> None:
    assert convert(file.read_text()) == Converted(text=file.read_text(), reasons=(), problems=())


def test_the_guides_template_is_converted_completely() -> None:
    converted = convert((FOLDER / "6.3.2-template.yaml").read_text())

    assert (
        converted.text
        == """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: tensor-fusion-gpu-template
  labels:
    tensor-fusion.ai/resource-claim-template: "true"
spec:
  metadata:
    labels:
      tensor-fusion.ai/resource-claim-template: "true"
  spec:
    devices:
      requests:
        - name: gpu-request
          exactly:
            # (a comment)
            deviceClassName: tensor-fusion.ai
            allocationMode: ExactCount
            count: 1
            selectors:
              - cel:
                # (another comment)
                  expression: "true"
            capacity:
              requests: {}  # (a last comment)
"""
    )
    assert [(reason.line, reason.text.split(":")[0]) for reason in converted.reasons] == [
        (1, "resource.k8s.io/v1beta2 is not served by default since 1.34"),
        (6, "a template's own labels are not copied to its claims"),
        (12, "allocationMode belongs in exactly"),
        (13, "deviceClassName is required"),
        (16, "unknown field selector"),
    ]


TEMPLATE = FOLDER / "3.2-template.yaml"
POD = FOLDER / "1.1-pod.yaml"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["convert", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


DEPLOYMENT: Final = """\
kind: Deployment
spec:
  template:
    metadata:
      annotations:
        # only these
        nvidia.com/use-gpuuuid: "GPU-1"  # a card
    spec:
      schedulerName: hami-scheduler
      # one container
      containers:
      - name: main
        resources:
          limits:
            nvidia.com/gpu: 2 # two
            # memory of each
            nvidia.com/gpumem: 3000
            nvidia.com/gpumems: 4
          requests: {nvidia.com/gpu: 2}
        env:
        - {name: GPU_CORE_UTILIZATION_POLICY, value: default}  # as in HAMi
"""
CONVERTED_DEPLOYMENT: Final = """\
kind: Deployment
spec:
  template:
    metadata:
      annotations:
        # only these
        tensor-fusion.ai/dra-cel-filter: 'FILTER'
        tensor-fusion.ai/compute-percent-limit: "100"
        tensor-fusion.ai/compute-percent-request: "memory"
    spec:
      # one container
      containers:
      - name: main
        resources:
          limits:
            tensor-fusion.ai/vram: "3000Mi"
            tensor-fusion.ai/gpu: "2"
            nvidia.com/gpumems: 4
          requests: {}
        env:
        - {name: GPU_CORE_UTILIZATION_POLICY, value: default}  # as in HAMi
"""


def test_limits_of_which_nothing_is_left_are_empty_and_not_null() -> None:
    limits = "limits:\n            nvidia.com/gpu: 2 # two"
    text = DEPLOYMENT.replace("requests: {nvidia.com/gpu: 2}", limits.replace("limits", "requests"))

    converted = convert(text, [Dialect.HAMI]).text

    (container,) = yaml.safe_load(converted)["spec"]["template"]["spec"]["containers"]
    limits_left = {"tensor-fusion.ai/vram": "3000Mi", "tensor-fusion.ai/gpu": "2"}
    assert container["resources"] == {
        "limits": {**limits_left, "nvidia.com/gpumems": 4},
        "requests": {},
    }


def test_containers_with_an_alias_for_their_resources_have_the_same_ones() -> None:
    containers = "- {name: a, resources: &of {limits: {nvidia.com/gpumem: 1}}}"
    text = f"spec:\n  containers:\n  {containers}\n  - {{name: b, resources: *of}}\n"

    converted = convert(text, [Dialect.HAMI]).text

    assert converted.count('&of {limits: {tensor-fusion.ai/vram: "1Mi"}}') == 1
    assert "nvidia.com" not in converted


def test_whole_cards_that_the_file_names_already_stay_beside_annotations() -> None:
    text = DEPLOYMENT.replace("nvidia.com/gpumems: 4", "tensor-fusion.ai/gpu: 1")

    converted = convert(text, [Dialect.HAMI]).text

    template = yaml.safe_load(converted)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"] == {"tensor-fusion.ai/gpu": 1}
    assert template["metadata"]["annotations"]["tensor-fusion.ai/gpu-count"] == "2"


def test_words_of_other_systems_become_resources_and_comments_stay() -> None:
    converted = convert(DEPLOYMENT, [Dialect.HAMI])

    uuid = f'(has({A}.uuid) && ({A}.uuid.upperAscii().contains("GPU-1")))'
    assert converted.text == CONVERTED_DEPLOYMENT.replace("FILTER", uuid)
    assert [(each.line, each.text.partition(":")[0]) for each in converted.reasons] == [
        (7, "nvidia.com/use-gpuuuid"),
        (8, "no compute is named, so it gets the same part of compute as of memory"),
        (8, "resources of main say the same as annotations"),
        (9, "schedulerName"),
        (15, "nvidia.com/gpu"),
        (17, "nvidia.com/gpumem"),
        (18, "nvidia.com/gpumems"),
        (19, "nvidia.com/gpu"),
        (21, "GPU_CORE_UTILIZATION_POLICY"),
    ]
    assert converted.problems == ()
    assert convert(converted.text, [Dialect.HAMI]).text == converted.text
    assert convert(DEPLOYMENT).text == DEPLOYMENT, "only the dialects that are named"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (
            "kind: Pod\nspec:\n  containers:\n"
            "  - {name: a, resources: {limits: {nvidia.com/gpu: 2}}}\n"
            "  - {name: b, resources: {limits: {nvidia.com/gpu: 1}}}\n",
            *(2, "found amounts for containers a, b, expected one GPU for each: a container with "),
        ),
        (
            "kind: Pod\nspec:\n  containers:\n"
            "  - name: a\n    resources:\n      limits:\n"
            "        nvidia.com/gpumem: 3000\n        tensor-fusion.ai/vram: 1Gi\n",
            *(7, "nvidia.com/gpumem: found it beside tensor-fusion.ai/vram, expected one of"),
        ),
        # Otherwise compute would follow memory in b as well.
        (
            "kind: Pod\nspec:\n  containers:\n"
            "  - {name: a, resources: {limits: {nvidia.com/gpumem: 3000}}}\n"
            "  - {name: b, resources: {limits: {tensor-fusion.ai/vram: 1Gi}}}\n",
            *(4, "nvidia.com/gpumem: found it beside tensor-fusion.ai/vram, expected one of"),
        ),
        (
            "spec:\n  template:\n    spec:\n      containers:\n"
            "      - {name: a, resources: {limits: {nvidia.com/gpucores: 300}}}\n",
            *(5, "nvidia.com/gpucores: found '300', expected a whole number of at most 100"),
        ),
        (
            "kind: LLMInferenceService\nmetadata:\n  annotations:\n"
            "    serving.kserve.io/exp-dra-cel-selector: device.driver == 'x'\n",
            *(4, "serving.kserve.io/exp-dra-cel-selector: expected attributes of tensor-fusion"),
        ),
    ],
)
def test_what_cannot_be_said_is_named_and_stays(text: str, line: int, problem: str) -> None:
    converted = convert(text, list(Dialect))

    (found,) = converted.problems
    assert (converted.text, found.line) == (text, line)
    assert found.text.startswith(problem)


def test_kserve_makes_its_claims_of_this_drivers_class() -> None:
    text = (
        "kind: LLMInferenceService\nmetadata:\n  annotations:\n"
        "    serving.kserve.io/exp-dra-device-class: CLASS # whole cards\n"
    )

    converted = convert(text.replace("CLASS", "gpu.nvidia.com"), [Dialect.KSERVE])

    assert converted.text == text.replace("CLASS", "tensor-fusion.ai")
    assert convert(converted.text, [Dialect.KSERVE]).reasons == ()


def test_dialects_are_chosen_by_a_flag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(DEPLOYMENT)

    code, out, _ = run(capsys, "-f", str(file), "--dialects", "kai, hami")

    assert (code, out) == (0, convert(DEPLOYMENT, [Dialect.KAI, Dialect.HAMI]).text)
    refused, _, error = run(capsys, "-f", str(file), "--dialects", "kai,hammi")
    known = "hami, vgpu-manager, kai, gpu-fractioning, kserve"
    assert (refused, f"--dialects: found 'hammi', expected some of {known}" in error) == (2, True)


def test_the_text_is_on_stdout_and_the_diff_with_reasons_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "-f", str(TEMPLATE))

    assert run(capsys, "-f", str(TEMPLATE), "--check") == (1, "", err)
    assert run(capsys, "-f", str(POD)) == (0, POD.read_text(), "")
    assert run(capsys, "-f", str(POD), "--check") == (0, "", "")
    assert (code, out) == (0, convert(TEMPLATE.read_text()).text)
    old, new, *lines, last = err.splitlines()
    assert (old, new) == (f"--- {TEMPLATE}", f"+++ {TEMPLATE}, converted")
    assert {"-apiVersion: resource.k8s.io/v1beta2", "+apiVersion: resource.k8s.io/v1"} < {*lines}
    assert last == f"{TEMPLATE}:16: unknown field selector: renamed to selectors, a list"


def test_an_error_that_cannot_be_converted_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(
        "annotations:\n  tensor-fusion.ai/dra-cel-expression: 'device.x[\"quota\"] ='\n"
    )

    code, out, err = run(capsys, "-f", str(file))

    assert (code, out) == (1, file.read_text())
    assert err.startswith(f"{file}:2: refused: expression 1:19: found '=', expected a name")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a: [", "YAML: line 1: expected"),
        (b"a: \xff", "found byte 3, expected UTF-8"),
        (None, "No such file"),
    ],
)
def test_bad_input_is_a_one_line_error_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: bytes | None, expected: str
) -> None:
    file = tmp_path / "pod.yaml"
    if text is not None:
        file.write_bytes(text)

    code, out, err = run(capsys, "-f", str(file))

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


@pytest.mark.process
def test_stdin_is_printed_byte_for_byte() -> None:
    text = POD.read_bytes().replace(b"\n", b"\r\n") + "# é".encode()

    ended = forks.run("convert", "-f", "-", stdin=text)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, text.decode(), "")
