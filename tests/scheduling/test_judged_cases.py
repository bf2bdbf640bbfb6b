"""Kubernetes' own allocator and CEL compiler agree with ours, by rule and release.

judged.json has their outcomes. Where Go and a release's module k8s.io/dynamic-resource-allocation
are in Go's module cache, another test has them judge again, offline. To get a module::

    go mod download k8s.io/dynamic-resource-allocation@v0.37.2

With JUDGED=write in the environment it writes the file.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from dra_simulator import allocation_results
from tensorfusion_dra.core.kubernetes import releases
from tensorfusion_dra.scheduling import allocation, cel_evaluation, devices
from tensorfusion_dra.scheduling.allocation import NoFitError
from tensorfusion_dra.scheduling.cel_evaluation import CelRunError
from tensorfusion_dra.scheduling.devices import SchedulingError
from tests.support import judged_cases
from tests.support.objects import NODE, resource_slice

Json = dict[str, Any]

HERE: Final = Path(__file__).parent
FILE: Final = HERE / "judged.json"
MODULES: Final = {36: "v0.36.6", 37: "v0.37.2", 38: "v0.38.0-beta.0"}
"""Version of the module by minor version of Kubernetes."""
ALLOCATIONS: Final = judged_cases.allocations()
SELECTIONS: Final = {each["name"]: each for each in judged_cases.selections()}
JUDGED: Final = json.loads(FILE.read_text()) if FILE.exists() else {}
ON_NODE: Final = {
    "nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
    ]
}


_VARYING: Final = re.compile(
    r" on device \S+(?=: CEL)|(?<= converted to bool): .*|(?<= requested both).*"
    r"|(?<=parse semantic version: ).*"
    r"|(?<=must evaluate to bool or the unknown type), .*|(?<=<input>:1):(?s:.*)",
)
WRAPS: Final = frozenset(
    {
        ("amount 10E in steps of 1Mi", 36),
        ("amount 8Ei in steps of 1Mi", 36),
        ("amount 1e19 of a huge capacity", 36),
    }
)
"""1.36 allocates nothing or a negative amount, as 64 bits wrap around; here the amount is too
large."""


def allocated(case: Json, release: int) -> Json:
    """Return our outcome of a case as the judge writes it."""
    cluster = allocation.cluster(
        slices=case["slices"],
        classes=case["classes"],
        claims=[*case["held"], *case["claims"]],
        release=release,
    )
    try:
        found = allocation_results.allocate(case["claims"], cluster, case["node"])
    except NoFitError:
        return {"node": True}
    except SchedulingError as error:
        return stored({"error": str(error)})
    picks = [
        [
            {
                "device": each["device"],
                **({"consumed": each["consumedCapacity"]} if "consumedCapacity" in each else {}),
                **({"waits": each["bindingConditions"]} if "bindingConditions" in each else {}),
            }
            for each in result["devices"]["results"]
        ]
        for result in found
    ]
    return stored({"picks": picks, "nodes": [result.get("nodeSelector") for result in found]})


def selected(case: Json, release: int) -> Json:
    """Return our outcome of a selector as the judge writes it."""
    (device,) = devices.slice_of(resource_slice(case["device"])).devices
    if refused := cel_evaluation.check_expression(case["expression"], release=release):
        return stored({"refused": refused})
    try:
        matches = cel_evaluation.selector(case["expression"]).matches(device, release=release)
    except CelRunError as error:
        return stored({"error": str(error)})
    return {"matches": matches}


def stored(outcome: Json) -> Json:
    """Return an outcome with what both say in the same words.

    Left out are why a node does not fit, the usual node selector, the device on which a selector
    fails, which 1.36 does not name, and most of an error of an expression.
    """
    if "node" in outcome:
        return {"node": True}
    if "picks" in outcome:
        return {
            key: value for key, value in outcome.items() if key != "nodes" or value != [ON_NODE]
        }
    return {
        key: _VARYING.sub("", value) if isinstance(value, str) else value
        for key, value in outcome.items()
    }


@pytest.mark.parametrize("release", MODULES)
@pytest.mark.parametrize("name", ALLOCATIONS)
def test_devices_are_allocated_as_by_kubernetes(name: str, release: int) -> None:
    expected = JUDGED[name][f"1.{release}"]
    if (name, release) in WRAPS:
        assert "picks" in expected
        expected = {"node": True}

    assert allocated(ALLOCATIONS[name], release) == expected


@pytest.mark.parametrize("release", MODULES)
@pytest.mark.parametrize("name", SELECTIONS)
def test_selectors_are_evaluated_as_by_kubernetes(name: str, release: int) -> None:
    expected = JUDGED[name][f"1.{release}"]
    assert selected(SELECTIONS[name], release) == expected


def test_the_newest_release_is_judged() -> None:
    assert max(MODULES) == releases.NEWEST


@pytest.mark.process
@pytest.mark.parametrize("release", MODULES)
def test_kubernetes_judges_as_the_file_says(release: int, tmp_path: Path) -> None:
    judged = judge(release, tmp_path)

    if os.environ.get("JUDGED") == "write":
        written = json.loads(FILE.read_text()) if FILE.exists() else {}
        for name, outcome in judged.items():
            written.setdefault(name, {})[f"1.{release}"] = outcome
        kept = {name: written[name] for name in sorted(judged)}
        FILE.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    assert judged == {
        name: by_release[f"1.{release}"]
        for name, by_release in json.loads(FILE.read_text()).items()
    }


def judge(release: int, folder: Path) -> dict[str, Json]:
    """Return the outcomes of Kubernetes' own code; skip the test without Go or the module."""
    go, version = shutil.which("go"), MODULES[release]
    if go is None:
        pytest.skip("found no go on PATH")
    module = f"k8s.io/dynamic-resource-allocation {version}"
    for source in (HERE / "judge").glob("*.go"):
        shutil.copy(source, folder)
    replaced = "sigs.k8s.io/structured-merge-diff/v7"
    old = f"replace {replaced} => {replaced} v7.0.0\n" if release == 38 else ""
    language = "1.27.0" if release == 38 else "1.26.0"
    text = f"module judge\n\ngo {language}\n\nrequire {module}\n\n{old}"
    (folder / "go.mod").write_text(text)
    offline = {"GOPROXY": "off", "GOFLAGS": "-mod=mod", "GONOSUMDB": "*", "GOTOOLCHAIN": "auto"}
    built = subprocess.run(
        [go, "build", "-p", "1", "-tags", f"release{release}", "-o", "judge", "."],
        cwd=folder,
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
    )
    if "GOPROXY=off" in built.stderr or "toolchain not available" in built.stderr:
        pytest.skip(f"found no module {module} in Go's cache, or no Go {language}")
    assert built.returncode == 0, built.stderr
    run = subprocess.run(
        [folder / "judge"],
        input=json.dumps(judged_cases.document()),
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: stored(outcome) for name, outcome in json.loads(run.stdout).items()}
