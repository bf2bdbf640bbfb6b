"""Rules for the code's structure: what core may import, and empty package files."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.enforcers import registered
from tests.support import installation
from tests.support.sources import PACKAGE, ROOT, files, imported, nodes, strings

OUTSIDE: Final = {
    "asyncio",
    "ctypes",
    "glob",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}
"""Modules of the standard library for I/O, threads, clocks, randomness or processes."""


@pytest.mark.parametrize("path", files(PACKAGE / "core"), ids=lambda path: path.stem)
def test_core_imports_only_itself_and_modules_without_io_clocks_or_threads(path: Path) -> None:
    foreign = [
        name
        for name in imported(path)
        if name.partition(".")[0] not in sys.stdlib_module_names - OUTSIDE
        and not f"{name}.".startswith("tensorfusion_dra.core.")
    ]

    assert foreign == []


def test_no_modules_import_each_other_directly_or_through_others() -> None:
    """Imports inside functions and for types alone count too."""
    both = [*files(), *files(ROOT / "dra_simulator")]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in both}
    reached = {name: set(imported(file)) & names.keys() for name, file in names.items()}
    for through in names:
        for name, others in reached.items():
            if through in others:
                reached[name] = others | reached[through]

    assert {name for name, others in reached.items() if name in others} == set()


def test_package_init_files_are_empty() -> None:
    assert [each for each in files() if each.name == "__init__.py" and each.stat().st_size] == []


ENFORCER_CLASSES: Final = {"HamiCore", "Mps", "NoEnforcer", "Nvidia", "TensorFusion"}
ENFORCER_NAMES: Final = {*registered.OWN} - {"none"}  # which means other things as well
CHART_VALUES: Final = {
    first + "".join(map(str.title, rest))
    for first, *rest in (name.split("-") for name in ENFORCER_NAMES)
}
ENFORCER_WORDS: Final = {
    *ENFORCER_NAMES,
    *(name.replace("-", "_") for name in ENFORCER_NAMES),
    *CHART_VALUES,
    *("HAMi", "HAMi-core", "MPS", "hypervisor", "Hypervisor"),
}
"""What users and programs call single enforcers. NVIDIA in capitals is the maker of the cards."""
ENFORCER_SETTINGS: Final = {
    written
    for declared in registered.DECLARED.values()
    for name in declared.settings
    for written in (name, name.replace("_", "-"))
}
# A word may go on in lower case (hypervisor_address); a name of something else has more around it:
# nvidia.com/gpu, tensor-fusion.ai/uuid, /run/nvidia.
ENFORCER_WORD: Final = re.compile(
    rf"(?<![\w./:@$-])({'|'.join(sorted(ENFORCER_WORDS, reverse=True))})(?![./:@-]*[a-zA-Z0-9/@])"
    rf"|\b({'|'.join(ENFORCER_SETTINGS)})\b|(?<=enforcers\.)({'|'.join(CHART_VALUES)})\b"
    r"|\b(?<![./-])(hypervisor|Hypervisor)(?=[_A-Z])"
)
WORD_OF_AN_IDENTIFIER: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
IDENTIFYING: Final = {"hami", "mps", "hypervisor"}
DECLARED_IN_REGISTERED: Final = re.compile(
    rf"registered\w*\.({'|'.join(name.replace('-', '_').upper() for name in ENFORCER_NAMES)})$"
)
KNOWN_OUTSIDE: Final = {
    "tensorfusion_dra/app/memory_limits.py": (
        "Nvidia nvidia.enforcer nvidia.enforcer.FOLDER nvidia.enforcer.Nvidia "
        "nvidia.enforcer.REQUESTS nvidia.enforcer.SOCKET",
        "the process behind it",
    ),
    "tensorfusion_dra/app/simulate/cluster.py": ("tensor-fusion", "a simulated node's folder"),
    "tensorfusion_dra/app/doctor/gpus.py": ("HAMi by_hami", "HAMi's device plugin"),
    "tensorfusion_dra/core/admission/dialects.py": (
        "mps HAMI",
        "another system's annotation, and the dialect of HAMi",
    ),
    "tensorfusion_dra/core/names.py": (
        "ENV_HYPERVISOR_IP ENV_HYPERVISOR_PORT ENV_MPS_MEMORY_LIMIT ENV_MPS_PIPE_FOLDER "
        "ENV_MPS_THREAD_PERCENTAGE HAMI_CORE_BYPASSES",
        "names in containers, each with its source",
    ),
    "tensorfusion_dra/discovery/host.py": ("nvidia", "a folder of NVIDIA's driver container"),
    "tensorfusion_dra/discovery/models.py": ("nvidia", "a word in product names of cards"),
    "tensorfusion_dra/discovery/nvml/nvml_discovery.py": ("nvidia", "a module of Linux"),
    "tensorfusion_dra/discovery/nvml/processes.py": ("MPS", "a list of NVML"),
    "tensorfusion_dra/scheduling/cel_evaluation.py": ("tensor_fusion", "a name of protobuf"),
    "daemonset/chart/Chart.yaml": ("nvidia", "keywords of the chart"),
    "daemonset/chart/values.yaml": (
        "nvidia hamiCore mps tensorFusion",
        "the values that install enforcers",
    ),
    "daemonset/chart/templates/NOTES.txt": ("nvidia", "the values of NVIDIA's runtime"),
    "daemonset/chart/templates/daemonset.yaml": ("tensor-fusion", "volume of the driver's files"),
    "daemonset/chart/templates/_memory-limits.tpl": ("tensor-fusion", "the same volume"),
    "daemonset/chart/templates/hami-core.yaml": (
        "hami-core hamiCore hami-core-library",
        "installs it",
    ),
    "daemonset/chart/templates/mps.yaml": ("mps mps-root MPS", "installs it"),
    "daemonset/chart/templates/pod-policy.yaml": ("tensorFusion", "who may write its annotations"),
}
"""Words for enforcers in files outside of `enforcers`, and why. None of them chooses by a name.

Words of identifiers count too, each as the whole identifier."""


def texts(path: Path) -> Iterator[str]:
    """Yield what a file says to users and programs: no docstrings, no comments."""
    if path.suffix != ".py":
        for line in path.read_text(encoding="utf-8").splitlines():
            yield re.sub(r"\.Values\.nvidia\b|(^|\s)#.*|//.*|\{\{-? ?/\*.*?\*/.*", "", line)
        return
    yield from strings(path)


def identifiers(path: Path) -> Iterator[str]:
    """Yield the names that a file defines, imports or uses, arguments included."""
    for node in nodes(path):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.alias):
            yield from (node.name.rpartition(".")[2], node.asname or "")


def identifies(name: str) -> bool:
    """Return True if a word of the name is one for an enforcer: mps_root, HAMI_CORE, HamiCore."""
    words = {word.lower() for word in WORD_OF_AN_IDENTIFIER.findall(name)}
    return not IDENTIFYING.isdisjoint(words)


def enforcers_named(path: Path) -> set[str]:
    """Return the words for single enforcers in a file, and the modules and classes of them."""
    found = {match[0] for text in texts(path) for match in ENFORCER_WORD.finditer(text)}
    if path.suffix == ".py":
        modules = {each.replace("-", "_") for each in registered.OWN}
        prefix = "tensorfusion_dra.enforcers."
        own = {each.removeprefix(prefix) for each in imported(path) if each.startswith(prefix)}
        found |= {each for each in own if each.partition(".")[0] in modules}
        found |= {each for each in identifiers(path) if identifies(each)}
        # The names of declarations, which are words for other things elsewhere.
        found |= {each for each in used(path) if DECLARED_IN_REGISTERED.search(each)}
        found |= {
            node.id
            for node in nodes(path)
            if isinstance(node, ast.Name) and node.id in ENFORCER_CLASSES
        }
    return found


def test_single_enforcers_are_known_only_in_their_folder() -> None:
    chart = ROOT / "daemonset" / "chart"
    product = (each for each in files() if PACKAGE / "enforcers" not in each.parents)
    html = PACKAGE.rglob("*.html")
    templates = (each for each in chart.rglob("*") if each.suffix in {".tpl", ".yaml", ".txt"})
    named = {
        str(path.relative_to(ROOT)): found
        for path in (*product, *html, *templates)
        if path != chart / installation.DECLARED.name and (found := enforcers_named(path))
    }

    assert named == {path: {*words.split()} for path, (words, _) in KNOWN_OUTSIDE.items()}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("enforcer hami-core or mps, which", ["hami-core", "mps"]),
        ('.orValue("") in ["hami-core"]', ["hami-core"]),
        ("nvidia,tensor-fusion", ["nvidia", "tensor-fusion"]),
        ("hypervisor_address", ["hypervisor"]),
        ("HypervisorMissing", ["Hypervisor"]),
        ("the MPS daemon.", ["MPS"]),
        ("HAMi's library", ["HAMi"]),
        ("{{ .Values.enforcers.hamiCore.install }}", ["hamiCore"]),
        ("enforcers.tensorFusion.schedulerAccounts", ["tensorFusion"]),
        ("--mps-root=/run, hypervisor-sockets", ["mps-root", "hypervisor-sockets"]),
        ("nvidia.com/gpu tensor-fusion.ai/uuid /run/nvidia/mps NVIDIA tensor-fusion-gpu-claim", []),
    ],
)
def test_words_for_enforcers_are_found_within_texts(text: str, found: list[str]) -> None:
    assert [match[0] for match in ENFORCER_WORD.finditer(text)] == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *((name, True) for name in ("mps_root", "HAMI_CORE_BYPASSES", "HamiCore", "by_hypervisor")),
        *((name, False) for name in ("dumps", "json_dumps", "NVIDIA_GPU", "tensor_fusion_root")),
    ],
)
def test_words_for_enforcers_are_found_within_identifiers(name: str, found: bool) -> None:
    assert identifies(name) == found


COLLECTION_READERS: Final = {
    "core/kubernetes/item_stream.py": "the stream of a list's objects",
    "app/shared/streams.py": "a document of the command's user",
    "app/convert/command.py": "a document of the command's user",
    "app/inspect.py": "the list that it writes",
}
"""Files that name the field `items`, and why."""


def test_collections_are_read_in_one_way_which_bounds_each_object() -> None:
    """Whoever takes the field `items` from an answer has a list of foreign objects whole."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in files()
        for node in nodes(path)
        if isinstance(node, ast.Constant) and node.value == "items"
    }

    assert found == COLLECTION_READERS.keys()


JSON_PARSERS: Final = {
    "core/kubernetes/untyped_json.py": "counts the elements of a text before",
    "core/kubernetes/item_stream.py": "counts those of an object before",
    "core/claims/cdi.py": "variables in a file of this driver",
    "state/claim_files.py": "files of this driver",
    "state/saved_state.py": "files of this driver",
    "state/claim_records.py": "files of this driver",
    "enforcers/nvidia/enforcer.py": "a pipe between processes of this driver",
    "app/memory_limits.py": "a pipe between processes of this driver",
    "discovery/host.py": "files of the node's administrator",
    "app/doctor/node.py": "files of the node's administrator",
    "app/simulate/webhook.py": "output of processes that the verb starts",
    "app/simulate/report.py": "output of processes that the verb starts",
    "app/simulate/plugin_process.py": "output of processes that the verb starts",
}
"""Files that parse JSON by the standard library, and whose it is."""


def used(path: Path) -> Iterator[str]:
    """Yield the names that a file uses: plain ones, those after a dot, and those it imports."""
    for node in nodes(path):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
            yield from (each.name for each in node.names)


def test_foreign_objects_are_counted_before_they_are_parsed() -> None:
    parsing = {"loads", "JSONDecoder", "raw_decode", "json.load"}
    found = {
        str(path.relative_to(PACKAGE)) for path in files() if not parsing.isdisjoint(used(path))
    }

    assert found == JSON_PARSERS.keys()


def test_yaml_is_read_in_one_way_which_bounds_it() -> None:
    """`convert`, which keeps comments, has the same bounds in another library."""
    found = {
        str(path.relative_to(ROOT))
        for path in (*files(), *files(ROOT / "dra_simulator"))
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "yaml"
        and "load" in node.attr.lower()
    }

    assert found == {"tensorfusion_dra/runtime/untyped_yaml.py"}


THREAD_STARTERS: Final = {
    "webhook/server.py": "a fixed number, which requests get in turn",
    "cluster/published_cards.py": "one that evaluates selectors",
    "runtime/http_server.py": "a bounded number for pages and probes, and one that accepts",
    "kubelet/plugin_servers.py": "a fixed number for the kubelet's calls",
    "runtime/single_call_thread.py": "one for each provider and enforcer of another package",
    "runtime/supervisor.py": "one for each part of the process",
}
"""Files that start threads, and how many."""
STARTING: Final = {
    *("Thread", "Timer", "start_new_thread", "to_thread", "ThreadPoolExecutor"),
    *("ThreadingMixIn", "ThreadingHTTPServer", "ThreadingTCPServer", "ThreadingUnixStreamServer"),
}


def test_threads_for_requests_are_started_in_few_places_which_bound_them() -> None:
    found = {
        str(path.relative_to(PACKAGE)) for path in files() if not STARTING.isdisjoint(used(path))
    }
    in_a_pool_of_asyncio = [
        node
        for path in files()
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "run_in_executor"
        and ast.unparse(node.args[0]) == "None"
    ]

    assert found == THREAD_STARTERS.keys()
    assert not in_a_pool_of_asyncio
