"""Strategy of each kind."""

from collections.abc import Callable
from typing import Final

from dra_simulator.api.core_strategies import (
    EventStrategy,
    NamespaceStrategy,
    NewEventStrategy,
    NodeStrategy,
    PodStrategy,
)
from dra_simulator.api.device_strategies import (
    ClaimStrategy,
    ClassStrategy,
    SliceStrategy,
    TemplateStrategy,
)
from dra_simulator.api.kinds import ADMISSION_GROUP, RESOURCE_GROUP, Kind
from dra_simulator.api.strategy import Setting, Strategy
from dra_simulator.api.webhook_matching import MUTATING, VALIDATING
from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP

_SLICE_IMMUTABLE: Final = ("spec.pool.name", "spec.driver", "spec.nodeName")


def of_kinds(setting: Setting) -> Callable[[Kind], Strategy]:
    """Return a function that returns the strategy of a kind on a server with this setting."""
    table: dict[tuple[str, str], Strategy] = {
        ("", "namespaces"): NamespaceStrategy(setting, has_status=True),
        ("", "nodes"): NodeStrategy(setting, has_status=True),
        ("", "pods"): PodStrategy(setting, has_status=True),
        ("", "events"): EventStrategy(setting),
        ("events.k8s.io", "events"): NewEventStrategy(setting),
        (RESOURCE_GROUP, "deviceclasses"): ClassStrategy(setting),
        (RESOURCE_GROUP, "resourceclaims"): ClaimStrategy(
            setting, has_status=True, immutable=("spec",)
        ),
        (RESOURCE_GROUP, "resourceclaimtemplates"): TemplateStrategy(setting, immutable=("spec",)),
        (RESOURCE_GROUP, "resourceslices"): SliceStrategy(setting, immutable=_SLICE_IMMUTABLE),
        (ADMISSION_GROUP, MUTATING): Strategy(setting),
        (ADMISSION_GROUP, VALIDATING): Strategy(setting),
        (TENSOR_FUSION_GROUP, "gpupools"): Strategy(setting, has_status=True),
        (TENSOR_FUSION_GROUP, "schedulingconfigtemplates"): Strategy(setting, has_status=True),
    }
    return lambda kind: table[kind.group, kind.plural]
