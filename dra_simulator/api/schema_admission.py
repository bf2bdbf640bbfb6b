"""Fields of the webhook configurations of admissionregistration.k8s.io."""

from typing import Final

from dra_simulator.api.schema import Structs

ADMISSION: Final[Structs] = {
    "WebhookConfiguration": {"metadata": "ObjectMeta", "webhooks": "[+name]Webhook"},
    "Webhook": {
        "name!": "string",
        "clientConfig!": "WebhookClientConfig",
        "rules": "[]WebhookRule",
        "failurePolicy": "*string",
        "matchPolicy": "*string",
        "namespaceSelector": "*LabelSelector",
        "objectSelector": "*LabelSelector",
        "sideEffects!": "*string",
        "timeoutSeconds": "*int",
        "admissionReviewVersions!": "[]string",
        "reinvocationPolicy": "*string",
        "matchConditions": "[+name]MatchCondition",
    },
    "WebhookClientConfig": {"url": "*string", "service": "*ServiceReference", "caBundle": "string"},
    "ServiceReference": {
        "namespace!": "string",
        "name!": "string",
        "path": "*string",
        "port": "*int",
    },
    "WebhookRule": {
        "apiGroups": "[]string",
        "apiVersions": "[]string",
        "resources": "[]string",
        "operations": "[]string",
        "scope": "*string",
    },
    "MatchCondition": {"name!": "string", "expression!": "string"},
}
