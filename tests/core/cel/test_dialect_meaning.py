"""A translated selector has the meaning of the guide's dialect on every device."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel.dialect import translate
from tensorfusion_dra.core.devices.device import Device, Node
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, NANO
from tensorfusion_dra.scheduling import cel_evaluation
from tests.core.cel.dialect_terms import TOTALS, Facts, Term, expressions
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu
from tests.support.selecting import as_scheduled
from tests.support.tally import examples

MORE = Oversubscription(tflops_percent=150, host_memory_percent=50, host_disk_percent=0)
HOST = HostResources(memory_bytes=160 * GIB, disk_bytes=0)


def facts(device: Device) -> Facts:
    """Return the device as the mapping that the dialect's meaning takes."""
    found: dict[str, object] = dict(device.attributes)
    for name in TOTALS:
        found[name] = quantity.parse(found[name]).nano / NANO
    for name, capacity in device.capacity.items():
        found[name] = capacity.value.nano / NANO
    return found


cards = st.builds(
    gpu,
    model=st.sampled_from(["A100", "H100", "T4"]),
    milli_tflops=st.sampled_from([312_000, 71_200, 8_000, 500]),
    vram_bytes=st.sampled_from([80 * GIB, 40 * GIB, 16 * GIB]),
)
nodes = st.builds(
    Node,
    name=st.just("node-01"),
    gpupool=st.sampled_from(["default", "prod-pool"]),
    qos=st.sampled_from(["medium", "high"]),
    oversubscription=st.sampled_from([None, MORE]),
)


@settings(max_examples=examples(400))
@given(expressions, cards, nodes)
def test_translation_preserves_the_meaning(term: Term, card: Gpu, node: Node) -> None:
    device = published_devices(card, node=node, host=HOST)[0]
    text, meaning = term

    translated = translate(text)

    assert cel_evaluation.check_expression(translated) is None, translated
    assert cel_evaluation.selector(translated).matches(as_scheduled(device)) == meaning(
        facts(device)
    )
    assert translate(translated) == translated


@given(expressions)
def test_translation_preserves_comments_and_lines(term: Term) -> None:
    text = term[0]

    comments = [line.partition("//")[1:] for line in text.splitlines() if "//" in line]
    translated = translate(text)

    assert [
        line.partition("//")[1:] for line in translated.splitlines() if "//" in line
    ] == comments
    assert translated.count("\n") == text.count("\n")
    assert names.DRIVER in translated
