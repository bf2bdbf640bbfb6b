"""Strings that other systems see, compared with the guide and with the rules of their readers."""

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_admission


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

    of_pods = annotations - {names.ANNOTATION_PREFIX, names.ANNOTATION_DEFAULT_POOL}
    assert of_pods == pod_admission.KNOWN_ANNOTATIONS > names.SHARE_ANNOTATIONS
    assert all(name.startswith(names.ANNOTATION_PREFIX) for name in annotations)
