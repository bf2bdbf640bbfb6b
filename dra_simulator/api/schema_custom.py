"""Fields of custom resources whose definitions check nothing and preserve all fields."""

from typing import Final

from dra_simulator.api.schema import Structs

CUSTOM: Final[Structs] = {
    "CustomResource": {"metadata": "ObjectMeta", "spec": "*raw", "status": "*raw"},
}
