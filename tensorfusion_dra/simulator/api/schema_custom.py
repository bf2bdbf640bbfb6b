"""The fields of custom resources whose definition checks nothing and keeps everything."""

from typing import Final

from tensorfusion_dra.simulator.api.schema import Structs

CUSTOM: Final[Structs] = {
    "CustomResource": {"metadata": "ObjectMeta", "spec": "*raw", "status": "*raw"},
}
