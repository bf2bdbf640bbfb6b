"""Options of the verb `cel`."""

from collections.abc import Mapping
from dataclasses import dataclass

from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """An expression and the action to take on it.

    Attributes:
        action: translate, check or explain.
        form: table or json.
        as_is: The user guide's dialect counts as an error, as in the API server (check).
        slices: File with ResourceSlices; None reads them from the API server (explain).
        kubeconfig: None for the one that kubectl would use (explain).
        requests: Amounts by capacity that the claim requests (explain).
    """

    action: str
    expression: str
    form: str
    as_is: bool = False
    slices: str | None = None
    kubeconfig: str | None = None
    requests: Mapping[str, Quantity]
