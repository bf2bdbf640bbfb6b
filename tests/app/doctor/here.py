"""Context of a doctor whose paths are all in a folder of the test."""

from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import names
from tests.support.prepared_node import Setup, put_claim, share_result, use_real_cards

OWN_NAMESPACE: Final = "tensorfusion-dra"
"""Namespace of a doctor in a pod."""


def context(
    folder: Path,
    *,
    api: Api | None = None,
    place: Place = Place.NODE,
    in_pod: bool = False,
    **settings: Any,
) -> Context:
    """Return a context whose folders are all in this one, except for those that settings name."""
    given: dict[str, Any] = {
        "node_name": "node-01",
        "enforcer": "tensor-fusion",
        "simulated_gpus": "2xA100-SXM4-80GB",
        "kubelet_root": str(folder / "kubelet"),
        "data_dir": str(folder),
        "cdi_dir": str(folder / "cdi"),
        "static_cdi_dir": str(folder / "static-cdi"),
        "dev_dir": str(folder / "dev"),
        "driver_root": str(folder / "driver"),
        "hami_core_library": str(folder / "vgpu" / "libvgpu.so"),
        "mps_root": str(folder / "mps"),
        "tensor_fusion_root": str(folder / "tensor-fusion"),
    }
    return Context(
        settings=Settings(**{**given, **settings}),
        place=place,
        own_namespace=OWN_NAMESPACE if in_pod else "",
        cluster=ClusterLists(api or Api(folder / "no-kubeconfig")),
    )


def put_prepared_claim(folder: Path, *, has_real_cards: bool = False) -> None:
    """Prepare one claim on a node whose folders the context names."""
    setup = Setup(folder)
    if has_real_cards:
        use_real_cards(setup)
    setup.prepare(put_claim(setup, "a", share_result()))
    setup.store.close()
    ours = folder / "kubelet" / "plugins" / names.DRIVER
    ours.parent.mkdir(parents=True)
    (folder / "plugin").rename(ours)
