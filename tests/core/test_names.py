"""Strings that other systems see: names of the guide, and texts on one printable line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import pod_admission
from tensorfusion_dra.core.errors import ClaimError, FatalError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import field_errors


def test_names_are_those_that_others_expect() -> None:
    expected = {
        # The guide's.
        "DRIVER": "tensor-fusion.ai.dra-driver",
        "CLAIM_TEMPLATE": "tensor-fusion-gpu-template",
        "SLICE_PREFIX": "tensor-fusion-resource-slice-",
        "LABEL_MANAGED_BY": "tensor-fusion.ai/managed-by",
        "LABEL_HOSTNAME": "kubernetes.io/hostname",
        # The kubelet uses the first version of a service that it knows.
        "SUPPORTED_VERSIONS": (
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ),
        # Runtimes name the files of a kind after it.
        "CDI_FILE_PREFIX": names.CDI_KIND.replace("/", "-") + "_",
    }
    assert {name: getattr(names, name) for name in expected} == expected


def test_every_annotation_has_tensor_fusions_domain_and_is_read_from_pods() -> None:
    annotations = {value for name, value in vars(names).items() if name.startswith("ANNOTATION_")}

    of_others = {names.ANNOTATION_DEFAULT_POOL, names.ANNOTATION_FILLED}
    of_pods = annotations - {names.ANNOTATION_PREFIX} - of_others
    assert of_pods == pod_admission.KNOWN_ANNOTATIONS > names.SHARE_ANNOTATIONS
    assert all(name.startswith(names.ANNOTATION_PREFIX) for name in annotations)


HOSTILE = "a\nb\r\x1b[31m\u202ec\x85\ud800\x9b"
SHOWN = r"a\nb\r\x1b[31m\u202ec\x85\ud800\x9b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain text, with ä and 漢", "plain text, with ä and 漢"),
        ("back\\slash", "back\\slash"),
        (HOSTILE, SHOWN),
    ],
)
def test_other_than_printable_characters_become_escapes(text: str, shown: str) -> None:
    assert printable.one_line(text) == shown


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert printable.one_line(text).isprintable()


@pytest.mark.parametrize("kind", [ClaimError, FatalError, InputError, RetryableError])
def test_text_of_every_error_is_printable(kind: type[ClaimError]) -> None:
    assert str(kind(f"field {HOSTILE}: found 1")) == f"field {SHOWN}: found 1"
    of_field = field_errors.invalid(f"spec.{HOSTILE}", "", "expected no such field")
    assert str(of_field) == f'spec.{SHOWN}: Invalid value: "": expected no such field'
