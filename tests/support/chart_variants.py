"""The chart's values of each way to install it."""

from collections.abc import Mapping
from typing import Any

from tests.support import installation
from tests.support.installation import WEBHOOK

MPS_DAEMON = {"settings": {"enforcer": "mps"}, "enforcers": {"mps": {"install": True}}}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "nvidia": {},
    "simulated": installation.NO_GPUS,
    "privileged": {"nvidia": {"privileged": True}},
    "driver-container": {"nvidia": {"driverRoot": "/run/nvidia/driver"}},
    "selinux": {"nodePlugin": {"seLinuxType": "spc_t"}},
    "device-metadata": {"settings": {"device-metadata": True}},
    "gpupools": {"settings": {"pool-source": "node-labels"}},
    "hami-core": {"settings": {"enforcer": "hami-core"}},
    "hami-core-install": {
        "settings": {"enforcer": "hami-core"},
        "enforcers": {"hamiCore": {"install": True}},
    },
    "hypervisor": {
        "settings": {
            "enforcer": "tensor-fusion",
            "hypervisor-sockets": "/var/lib/kubelet/device-plugins",
        }
    },
    "mps": {"settings": {"enforcer": "mps"}},
    "mps-daemon": MPS_DAEMON,
    "mps-daemon-privileged": {**MPS_DAEMON, "nvidia": {"privileged": True}},
    "mps-exclusive-process": {
        **MPS_DAEMON,
        "enforcers": {"mps": {"install": True, "exclusiveProcess": True}},
    },
    "nvidia-limits": {"settings": {"enforcer": "nvidia"}},
    "extended-resource": {"deviceClass": {"extendedResourceName": "tensor-fusion.ai/gpu"}},
    "monitoring": {"monitoring": {"enabled": True}},
    "share-classes": {
        **WEBHOOK,
        "shareClasses": {"gpu-quarter": {"requests": {"tflops": "78"}, "selectors": ["true"]}},
    },
    "webhook": WEBHOOK,
    "options-of-the-chart-alone": {
        "imagePullSecrets": [{"name": "registry"}],
        "kubeletRoot": "/var/lib/k0s/kubelet",
        "nvidia": {"driverRoot": "/run/nvidia/driver", "runtimeClass": "", "toolkitSpecs": ""},
        "nodePlugin": {
            "podAnnotations": {"a": "b"},
            "affinity": {"nodeAffinity": {}},
            "env": [{"name": "RACK_URL", "value": "http://rack.example"}],
        },
        "webhook": {"enabled": True, "certificate": {"source": "self-signed"}, "clientCA": "ca"},
        "settings": {"poll-seconds": 10, "read-pods": False},
    },
}
