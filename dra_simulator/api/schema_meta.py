"""Fields of meta/v1 in Kubernetes 1.36 (apimachinery, pkg/apis/meta/v1/types.go)."""

from typing import Final

from dra_simulator.api.schema import Structs

META: Final[Structs] = {
    "ObjectMeta": {
        "name": "string",
        "generateName": "string",
        "namespace": "string",
        "selfLink": "string",
        "uid": "string",
        "resourceVersion": "string",
        "generation": "int",
        "creationTimestamp": "*time",
        "deletionTimestamp": "*time",
        "deletionGracePeriodSeconds": "*int",
        "labels": "{}string",
        "annotations": "{}string",
        "ownerReferences": "[+uid]OwnerReference",
        "finalizers": "[+]string",
        "managedFields": "[]ManagedFieldsEntry",
    },
    "OwnerReference": {
        "apiVersion!": "string",
        "kind!": "string",
        "name!": "string",
        "uid!": "string",
        "controller": "*bool",
        "blockOwnerDeletion": "*bool",
    },
    "ManagedFieldsEntry": {
        "manager": "string",
        "operation": "string",
        "apiVersion": "string",
        "time": "*time",
        "fieldsType": "string",
        "fieldsV1": "*raw",
        "subresource": "string",
    },
    "Condition": {
        "type!": "string",
        "status!": "string",
        "observedGeneration": "int",
        "lastTransitionTime!": "*time",
        "reason!": "string",
        "message!": "string",
    },
    "LabelSelector": {"matchLabels": "{}string", "matchExpressions": "[]LabelSelectorRequirement"},
    "LabelSelectorRequirement": {"key!": "string", "operator!": "string", "values": "[]string"},
    "DeleteOptions": {
        "kind": "string",
        "apiVersion": "string",
        "gracePeriodSeconds": "*int",
        "preconditions": "*Preconditions",
        "orphanDependents": "*bool",
        "propagationPolicy": "*string",
        "dryRun": "[]string",
        "ignoreStoreReadErrorWithClusterBreakingPotential": "*bool",
    },
    "Preconditions": {"uid": "*string", "resourceVersion": "*string"},
}
