"""Options of the verb `cel`."""

from collections.abc import Mapping
from dataclasses import dataclass

from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to do with an expression.

    Attributes:
        action: translate, check or explain.
        form: table or json.
        as_is: The guide's dialect counts as wrong, as an API server sees it (check).
        slices: File with ResourceSlices; None to ask the API server (explain).
        kubeconfig: None for the one that kubectl would take (explain).
        requests: Amounts by capacity that a claim asks for (explain).
    """

    action: str
    expression: str
    form: str
    as_is: bool = False
    slices: str | None = None
    kubeconfig: str | None = None
    requests: Mapping[str, Quantity]
