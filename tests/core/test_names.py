"""Strings that other systems see, compared with the guide and with the rules of their readers."""

import re

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_admission
from tensorfusion_dra.core.kubernetes import device_rules
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu


def test_names_are_those_of_the_guide() -> None:
    expected = {
        "DRIVER": "tensor-fusion.ai.dra-driver",
        "CLAIM_TEMPLATE": "tensor-fusion-gpu-template",
        "SLICE_PREFIX": "tensor-fusion-resource-slice-",
        "LABEL_MANAGED_BY": "tensor-fusion.ai/managed-by",
        "LABEL_HOSTNAME": "kubernetes.io/hostname",
    }
    assert {name: getattr(names, name) for name in expected} == expected


def test_kubelet_finds_the_newest_version_of_each_service_first() -> None:
    assert names.SUPPORTED_VERSIONS == (
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    )


def test_every_attribute_has_a_name_that_the_api_accepts() -> None:
    attributes = [value for name, value in vars(names).items() if name.startswith("ATTR_")]
    (device,) = published_devices(gpu())

    named = {**device.as_api(), "attributes": {name: {"string": ""} for name in attributes}}

    assert len(attributes) == len(set(attributes)) >= 14
    assert device_rules.violations(named) == ()


def test_spec_files_are_named_after_the_kind_of_their_devices() -> None:
    assert names.CDI_KIND.replace("/", "-") + "_" == names.CDI_FILE_PREFIX


def test_environment_variables_have_names_that_every_shell_accepts() -> None:
    found = [value for name, value in vars(names).items() if name.startswith("ENV_")]
    variables = [value for value in found if isinstance(value, str)] + [*names.ENV_BYPASSES]

    assert len(variables) == len(set(variables)) > 0
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", variable) for variable in variables)


def test_every_annotation_has_tensor_fusions_domain_and_is_read_from_pods() -> None:
    annotations = {value for name, value in vars(names).items() if name.startswith("ANNOTATION_")}

    of_pods = annotations - {names.ANNOTATION_PREFIX, names.ANNOTATION_DEFAULT_POOL}
    assert of_pods == pod_admission.KNOWN_ANNOTATIONS
    assert all(name.startswith(names.ANNOTATION_PREFIX) for name in annotations)
    assert of_pods > names.SHARE_ANNOTATIONS
