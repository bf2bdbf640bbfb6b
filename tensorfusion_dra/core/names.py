"""Strings that other systems see: driver, labels, attributes, variables and file names."""

from typing import Final

DRIVER: Final = "tensor-fusion.ai.dra-driver"
"""ResourceSlice.spec.driver and the name given to the kubelet (user guide, 6.1.1)."""

DEVICE_CLASS: Final = "tensor-fusion.ai"
PARTITION_CLASS: Final = "partition.tensor-fusion.ai"
"""The partitions of cards in MIG mode, which claims of the other class do not get."""
OWN_CLASSES: Final = (DEVICE_CLASS, PARTITION_CLASS)
CLAIM_TEMPLATE: Final = "tensor-fusion-gpu-template"
"""Tensor Fusion's DRAResourceClaimTemplateName."""
LABEL_CLAIM_TEMPLATE: Final = "tensor-fusion.ai/resource-claim-template"
"""On claims that the webhook completes, with the value true (user guide, section 6.3.1)."""
LABEL_TEMPLATE_WANTED: Final = "tensor-fusion.ai/claim-template"
"""On namespaces, with the value true: the chart's next upgrade makes the claim template there."""
POD_CLAIM: Final = "tensor-fusion-gpu-claim"
"""Name of the entry in a pod's spec.resourceClaims: Tensor Fusion's DRAClaimDefineName."""

RESOURCE_GROUP: Final = "resource.k8s.io"
"""API group of claims, their templates, DeviceClasses and ResourceSlices."""

# --- Tensor Fusion's own objects -----------------------------------------------------------------

TENSOR_FUSION_GROUP: Final = "tensor-fusion.ai"
TENSOR_FUSION_VERSION: Final = "v1"
GPUPOOLS: Final = "gpupools"
GPU_RESOURCE_QUOTAS: Final = "gpuresourcequotas"
SCHEDULING_CONFIG_TEMPLATES: Final = "schedulingconfigtemplates"
ANNOTATION_DEFAULT_POOL: Final = "tensor-fusion.ai/is-default-pool"
"""On the GPUPool for pods that do not name one, with the value true."""
QUOTA_ADMITTED: Final = "tensor-fusion.ai/dra-admitted"
"""On a GPUResourceQuota: claims that the webhook has just admitted."""
LABEL_QUOTA: Final = "tensor-fusion.ai/quota"
"""On namespaces, with the value below: no claim is created there without a review."""
QUOTA_ENFORCED: Final = "enforced"
LABEL_DIALECT: Final = "tensor-fusion.ai/dialect-"
"""On namespaces, with the value true; before the name of a dialect that their pods may have."""
LABEL_TENSOR_FUSION_ENABLED: Final = "tensor-fusion.ai/enabled"
"""On pods that Tensor Fusion's own webhook changes, with the value true."""
TENSOR_FUSION_SCHEDULER: Final = "tensor-fusion-scheduler"
SCHEDULING_GROUP: Final = "scheduling.k8s.io"
QOS_PRIORITY_CLASSES: Final = {
    "high": "tensor-fusion-high",
    "critical": "tensor-fusion-critical",
}
"""PriorityClasses of Tensor Fusion's chart, by the level of service whose pods get them
(internal/webhook/v1/pod_webhook.go)."""
TENSOR_FUSION_INDEX: Final = "tensor-fusion.ai/index_"
"""Prefix of the extended resources of Tensor Fusion's hypervisor (pkg/constants/constants.go)."""
TENSOR_FUSION_WORKER: Final = "tensor-fusion.ai/component=worker"
"""Label, as a selector, of pods that get their cards from Tensor Fusion's scheduler."""
NVIDIA_GPU: Final = "nvidia.com/gpu"
"""The extended resource of NVIDIA's device plugin: whole cards."""

EVENT_GPUPOOL_INVALID: Final = "GPUPoolInvalid"
"""Reason of the Event on a Node whose GPUPool cannot be used."""

EVENT_SLICES_CONTESTED: Final = "ResourceSlicesContested"
"""Reason of the Event on a Node whose slices another writer keeps changing."""

FIELD_MANAGER: Final = "tensorfusion-dra"
"""Name of this driver in managedFields."""
BINDING_MANAGER: Final = "tensorfusion-dra-binding"
"""Name for binding conditions, which have to outlast the status that prepared claims get."""

EVENT_RECORD_DAMAGED: Final = "ClaimRecordDamaged"
"""Reason of the Event on the Node for a claim's record that cannot be read."""
EVENT_LIMITS_NOT_ENFORCED: Final = "LimitsNotEnforced"
EVENT_LIMITS_ENFORCED: Final = "LimitsEnforced"
"""Reasons of the Events on a pod when its limits do not hold, and when they hold again."""
EVENT_LIMIT_CHANGED: Final = "LimitChanged"
"""Reason of the Event on a pod when limits were asked for while it runs."""
EVENT_ENFORCER_MISSING: Final = "EnforcerMissing"
"""Reason of the Event on a Node on which nothing would enforce limits."""
EVENT_FOREIGN_PROCESSES: Final = "ForeignProcesses"
"""Reason of the Event on a Node for a GPU that is used by processes without a share of it."""
EVENT_GPU_UNHEALTHY: Final = "GPUUnhealthy"
EVENT_GPU_RECOVERED: Final = "GPURecovered"
"""Reasons of the Events on a Node when one of its GPUs becomes unhealthy, and healthy again."""

# --- ResourceSlice -------------------------------------------------------------------------------

SLICE_PREFIX: Final = "tensor-fusion-resource-slice-"
"""Tensor Fusion's DRAResourceSliceName; the node's name follows."""

LABEL_NODE: Final = "tensor-fusion.ai/node"
"""On claims whose limits were changed while they run; see resize.node_label()."""
LABEL_MANAGED_BY: Final = "tensor-fusion.ai/managed-by"
LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
LABEL_REPLACE_DRIVER: Final = "tensor-fusion.ai/replace-driver"
"""On a Node, with any value but false: its NVIDIA driver is being replaced."""
LABEL_UPGRADE_STATE: Final = "nvidia.com/gpu-driver-upgrade-state"
"""On a Node, from the upgrade controller of NVIDIA's GPU Operator (k8s-operator-libs)."""
DRIVER_REPLACEMENT_MARKER_FILE: Final = "driver-replacement"
"""File below tensor-fusion-root, there while the NVIDIA driver is being replaced."""

# Attributes of the user guide, section 5.2. A CEL selector that names an attribute which a device
# lacks stops the scheduling of its pod, so every device has every one of them.
ATTR_MODEL: Final = "model"
ATTR_POOL_NAME: Final = "pool_name"
ATTR_POD_NAMESPACE: Final = "pod_namespace"
ATTR_UUID: Final = "uuid"
ATTR_PHASE: Final = "phase"
ATTR_USED_BY: Final = "used_by"
ATTR_NODE_NAME: Final = "node_name"
ATTR_QOS: Final = "qos"
ATTR_NODE_TOTAL_TFLOPS: Final = "node_total_tflops"
ATTR_NODE_TOTAL_VRAM: Final = "node_total_vram"
ATTR_NODE_TOTAL_GPUS: Final = "node_total_gpus"
ATTR_NODE_MANAGED_GPUS: Final = "node_managed_gpus"
ATTR_NODE_VIRTUAL_TFLOPS: Final = "node_virtual_tflops"
ATTR_NODE_VIRTUAL_VRAM: Final = "node_virtual_vram"

# Attributes beyond the guide, also on every device.
ATTR_PRODUCT_NAME: Final = "product_name"
ATTR_ARCHITECTURE: Final = "architecture"
ATTR_COMPUTE_CAPABILITY: Final = "cuda_compute_capability"
ATTR_DRIVER_VERSION: Final = "driver_version"
ATTR_ENFORCER: Final = "enforcer"
ATTR_ENFORCES_COMPUTE: Final = "enforcesCompute"
ATTR_ENFORCES_MEMORY: Final = "enforcesMemory"
ATTR_PARTITION: Final = "partition"
ATTR_PARENT_UUID: Final = "parent_uuid"

# Kubernetes' own attributes; absent where the node does not report them, so that matchAttribute
# treats the device as not matching (deviceattribute package; KEP-6072 for the NUMA node).
ATTR_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
ATTR_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ATTR_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

PHASE_RUNNING: Final = "Running"
PHASE_UNKNOWN: Final = "Unknown"
"""Phase of an unhealthy device: Tensor Fusion's phase for a GPU in an unknown state. The guide's
selectors accept Running, and Tensor Fusion's own accept Running or Pending."""

TAINT_USED_BY: Final = "tensor-fusion.ai/used-by"
"""Key of the taint of a device that another driver or device plugin gives to containers as well."""
NVIDIA_DEVICE_PLUGIN: Final = "nvidia-device-plugin"
"""Tensor Fusion's name, in used_by, for a card of NVIDIA's device plugin."""

TAINT_UNHEALTHY: Final = "tensor-fusion.ai/unhealthy"
"""Key of the taint of an unhealthy device; its value is the reason."""
TAINT_ENFORCER_MISSING: Final = "tensor-fusion.ai/enforcer-missing"
"""Key of the taint of the devices of a node whose enforcer stayed away for too long."""
TAINT_CORDONED: Final = "tensor-fusion.ai/cordoned"
"""Key of the taint of a device that an administrator took out of service."""
CORDON_PREFIX: Final = "cordon.tensor-fusion.ai/"
"""Prefix of a Node's annotation that takes the device of the rest of its name out of service."""

TAINT_PARTITION: Final = "tensor-fusion.ai/partition"
"""Key of the taint of every partition; only requests for partitions tolerate it."""

# Conditions of a device in a claim's status, for which the scheduler waits (KEP-5007).
BINDING_READY: Final = "tensor-fusion.ai/enforcer-ready"
BINDING_FAILED: Final = "tensor-fusion.ai/enforcer-missing"

# Capacities of the user guide, section 5.3.
CAPACITY_TFLOPS: Final = "tflops"
CAPACITY_VRAM: Final = "vram"
CAPACITY_VIRTUAL_TFLOPS: Final = "virtual_tflops"
CAPACITY_VIRTUAL_VRAM: Final = "virtual_vram"
CAPACITIES: Final = frozenset(
    {CAPACITY_TFLOPS, CAPACITY_VRAM, CAPACITY_VIRTUAL_TFLOPS, CAPACITY_VIRTUAL_VRAM}
)

# Entry point groups of other packages' providers.
ATTRIBUTE_PROVIDERS: Final = "tensorfusion_dra.attributes"
CAPACITY_PROVIDERS: Final = "tensorfusion_dra.capacities"
HEALTH_SOURCES: Final = "tensorfusion_dra.health_sources"
ENFORCERS: Final = "tensorfusion_dra.enforcers"

# --- Annotations of claims and pods (user guide, section 4) --------------------------------------

ANNOTATION_PREFIX: Final = "tensor-fusion.ai/"
ANNOTATION_DRA_ENABLED: Final = "tensor-fusion.ai/dra-enabled"
ANNOTATION_TFLOPS_REQUEST: Final = "tensor-fusion.ai/tflops-request"
ANNOTATION_VRAM_REQUEST: Final = "tensor-fusion.ai/vram-request"
ANNOTATION_VRAM_PERCENT_REQUEST: Final = "tensor-fusion.ai/vram-percent-request"
"""Percent of a card's memory, instead of an amount; this driver's own annotation."""
ANNOTATION_GPU_COUNT: Final = "tensor-fusion.ai/gpu-count"
ANNOTATION_GPU_MODEL: Final = "tensor-fusion.ai/gpu-model"
ANNOTATION_GPUPOOL: Final = "tensor-fusion.ai/gpupool"
ANNOTATION_CEL_EXPRESSION: Final = "tensor-fusion.ai/dra-cel-expression"
ANNOTATION_CEL_FILTER: Final = "tensor-fusion.ai/dra-cel-filter"
"""A selector beside the generated one; this driver's own annotation."""
ANNOTATION_GPUS_MATCH: Final = "tensor-fusion.ai/gpus-match"
"""Attribute that all cards of a pod have to have in common; this driver's own annotation."""
ANNOTATION_INJECT_CONTAINER: Final = "tensor-fusion.ai/inject-container"
"""The containers that get the share, separated by commas."""
ANNOTATION_CONTAINER_SHARES: Final = "tensor-fusion.ai/container-shares"
"""A share for each of several containers, as JSON; this driver's own annotation."""
ANNOTATION_DEDICATED_GPU: Final = "tensor-fusion.ai/dedicated-gpu"
"""With the value true, the pod gets its cards exclusively."""
ANNOTATION_COMPUTE_PERCENT_REQUEST: Final = "tensor-fusion.ai/compute-percent-request"
ANNOTATION_COMPUTE_PERCENT_LIMIT: Final = "tensor-fusion.ai/compute-percent-limit"
"""Percent of a card's compute, instead of TFLOPS (Tensor Fusion's pkg/constants)."""
ANNOTATION_TFLOPS_LIMIT: Final = "tensor-fusion.ai/tflops-limit"
ANNOTATION_VRAM_LIMIT: Final = "tensor-fusion.ai/vram-limit"
ANNOTATION_QOS: Final = "tensor-fusion.ai/qos"
ANNOTATION_ISOLATION: Final = "tensor-fusion.ai/isolation"
ANNOTATION_REQUIRE_ENFORCEMENT: Final = "tensor-fusion.ai/require-enforcement"

ANNOTATION_FILLED: Final = "tensor-fusion.ai/filled-amounts"
"""On claim templates: the amounts of DeviceClasses that the webhook has added, `gpu:vram`."""
LABEL_FILL_AMOUNTS: Final = "tensor-fusion.ai/fill-amounts"
"""On claim templates, with the value false: the webhook leaves them as they are."""
RESOURCE_GPU: Final = "tensor-fusion.ai/gpu"
"""In a container's resources: the number of its cards, beside amounts of each. Alone it is the
extended resource of whole cards, if a DeviceClass has it."""

SHARE_ANNOTATIONS: Final = frozenset(
    {ANNOTATION_TFLOPS_LIMIT, ANNOTATION_VRAM_LIMIT, ANNOTATION_QOS, ANNOTATION_ISOLATION}
)

# --- Workers: pods as Tensor Fusion's hypervisor knows them (pkg/constants/constants.go) ----------

LABEL_COMPONENT: Final = "tensor-fusion.ai/component"
COMPONENT_WORKER: Final = "worker"
MARK_INDEX: Final = "tensor-fusion.ai/index"
"""Number by which the hypervisor's device plugin finds the pod, 1 to 128."""
MARK_GPU_IDS: Final = "tensor-fusion.ai/gpu-ids"
"""UUIDs of the pod's cards in lower case, separated by commas."""
MARK_CONTAINER_GPUS: Final = "tensor-fusion.ai/container-gpus"
"""JSON: container name to the UUIDs of its cards."""
MARK_GPU_INDICES: Final = "tensor-fusion.ai/gpu-indices"
"""Indices of cards to choose from; the hypervisor drops a pod whose indices it cannot parse."""
MARK_DRA_MARKS: Final = "tensor-fusion.ai/dra-marks"
"""The annotations and labels that this driver added to the pod, without their prefix."""
MARK_DRA_PREFIX: Final = "tensor-fusion.ai/dra-"
"""Before the name of an annotation that this driver replaced or removed; has its former value."""

# --- Kubelet -------------------------------------------------------------------------------------

PLUGIN_TYPE: Final = "DRAPlugin"

SUPPORTED_VERSIONS: Final = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
"""A kubelet uses the first entry of this list that it supports (1.34 and later)."""

# --- CDI -----------------------------------------------------------------------------------------

CDI_KIND: Final = "tensor-fusion.ai/vgpu"
CDI_FILE_PREFIX: Final = "tensor-fusion.ai-vgpu_"

# Device metadata (KEP-5304; k8s.io/dynamic-resource-allocation/api/metadata of 1.37).
METADATA_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"
"""In the container; the next folder of a path is one of the two below."""
METADATA_OF_CLAIMS: Final = "resourceclaims"
METADATA_OF_TEMPLATES: Final = "resourceclaimtemplates"
METADATA_FILE: Final = f"{DRIVER}-metadata.json"
METADATA_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""The newest first. Readers of 1.36 and KubeVirt 1.8 know only the last one."""
METADATA_KIND: Final = "DeviceMetadata"
METADATA_FOLDER: Final = "dra-device-metadata"
"""On the host, in the driver's own folder."""

CAPABILITIES_FOLDER: Final = "nvidia-caps"
"""Below /dev: a node for each instance that a card in MIG mode may have."""

ENV_NVIDIA_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
NVIDIA_VISIBLE_DEVICES_VOID: Final = "void"
"""Keeps NVIDIA's legacy runtime hook from injecting every GPU in addition to ours."""

ENV_SM_PERCENT_LIMIT: Final = "TF_CUDA_SM_PERCENT_LIMIT"
"""Percent of the card's compute, 1 to 100 (Tensor Fusion's hypervisor)."""
ENV_MEMORY_LIMIT: Final = "TF_GPU_MEMORY_LIMIT"
"""MiB."""
ENV_MEMORY_LIMIT_OLD: Final = "TF_CUDA_MEMORY_LIMIT"
"""MiB; the older name of TF_GPU_MEMORY_LIMIT, read by older limiters."""
ENV_UP_LIMIT_BY_UUID: Final = "TENSOR_FUSION_CUDA_UP_LIMIT"
"""JSON object, GPU UUID to percent."""
ENV_MEM_LIMIT_BY_UUID: Final = "TENSOR_FUSION_CUDA_MEM_LIMIT"
"""JSON object, GPU UUID to bytes."""
ENV_SHARE_PREFIX: Final = "TENSOR_FUSION_SHARE_"
"""Prefix of one variable for each share, so that several shares of a container do not collide."""

ENV_CUDA_DEVICE_ORDER: Final = "CUDA_DEVICE_ORDER"
CUDA_DEVICE_ORDER_PCI: Final = "PCI_BUS_ID"
"""Without it CUDA orders the cards by speed, and an index means another card."""

# Of Tensor Fusion's containers: internal/utils/compose.go and the limiter of NexusGPU/vgpu.rs.
ENV_ISOLATION_MODE: Final = "TF_ISOLATION_MODE"
ENV_SHM_PATH: Final = "TF_SHM_PATH"
"""The shared memory file."""
ENV_SHM_FOLDER: Final = "SHM_PATH"
"""The folder of the shared memory file."""
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"
ENV_POD_NAME: Final = "POD_NAME"
ENV_CONTAINER_NAME: Final = "CONTAINER_NAME"
"""Set by the webhook: a limiter registers its process with the hypervisor under this name."""
ENV_HYPERVISOR_IP: Final = "HYPERVISOR_IP"
ENV_HYPERVISOR_PORT: Final = "HYPERVISOR_PORT"
ENV_LD_PRELOAD: Final = "LD_PRELOAD"
ENV_BYPASSES: Final = (
    "DISABLE_GPU_LIMITER",
    "TF_ENABLE_DISPATCH_FORWARD",
    "TF_DISABLE_MEMORY_MANAGER",
    "TF_SKIP_HOOKS_IF_NO_LIMIT",
    "ENABLE_NVML_HOOKS",
    "ENABLE_CUDA_HOOKS",
)
"""Switches by which an image or a pod could evade its limits. They are set empty, which the limiter
takes for off, or for on where off would evade a limit (NexusGPU/vgpu.rs).

TF_SHM_FILE is not among them: if it is set, even empty, the limiter runs in its test mode.
"""
ENV_TEST_MODE: Final = "TF_SHM_FILE"
"""Names a file of limits instead of the hypervisor's; only admission can keep it out of a pod."""

# Of HAMi-core's containers: src/include/memory_limit.h, src/multiprocess/ and src/libvgpu.c of
# Project-HAMi/HAMi-core.
ENV_CUDA_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
"""For one card, an underscore and its index follow; an m after the number means MiB."""
ENV_CUDA_SM_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
"""Percent; for one card, an underscore and its index follow."""
ENV_CUDA_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
"""The file in which the processes of a container count their memory together."""
ENV_CUDA_TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"
CUDA_TASK_PRIORITY_LOW: Final = "1"
"""HAMi-core's value if the variable is unset; an empty value means 0, the high priority."""
ENV_CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
CORE_POLICY_FORCE: Final = "force"
"""Applies the compute limit also without HAMi's monitor on the node, and while a card is idle."""
HAMI_CORE_BYPASSES: Final = ("CUDA_DISABLE_CONTROL", "CUDA_REDIRECT")
"""Switches by which an image or a pod could evade HAMi-core; they are set empty."""

# Of clients of NVIDIA's Multi-Process Service (its guide, appendix on environment variables).
ENV_MPS_THREAD_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ENV_MPS_MEMORY_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""``index=amount`` of each card, separated by commas; an M after the number means MiB."""
ENV_MPS_PIPE_FOLDER: Final = "CUDA_MPS_PIPE_DIRECTORY"
