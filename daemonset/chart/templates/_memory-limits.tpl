{{- define "memory-limits" -}}
{{- $driver := include "driver-root" . | fromJson }}
{{- $settings := include "settings" . | fromYaml }}
# NVML sets a limit of a cgroup only for root with CAP_SYS_ADMIN, and at the host's path. The node plugin has neither, and
# asks this container over a socket that only root can open.
- name: memory-limits
  image: {{ include "image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
  - memory-limits
  env:
  - name: NVIDIA_VISIBLE_DEVICES
    value: all
  - name: NVIDIA_DRIVER_CAPABILITIES
    value: utility
  - name: TENSORFUSION_DRA_DRIVER_ROOT
    value: {{ $driver.root }}
  {{- with index $settings "nvml-library" }}
  - name: TENSORFUSION_DRA_NVML_LIBRARY
    value: {{ . | quote }}
  {{- end }}
  # Asks it anything; it answers, if with an error, unless it hangs.
  livenessProbe:
    exec:
      command:
      - python3
      - -I
      - -S
      - -c
      - >-
        import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(9);
        s.connect("/run/tensor-fusion/nvidia/memory-limits/socket"); s.sendall(b"{}\n");
        raise SystemExit(not s.recv(1))
    periodSeconds: 30
    timeoutSeconds: 10
    failureThreshold: 4
  resources:
    requests:
      cpu: 1m
      memory: 48Mi
  securityContext:
    privileged: true
    readOnlyRootFilesystem: true
  volumeMounts:
  - name: tensor-fusion
    mountPath: /run/tensor-fusion
  - name: cgroups
    mountPath: /sys/fs/cgroup
  - name: driver-root
    mountPath: {{ $driver.at }}
    readOnly: true
    mountPropagation: HostToContainer
{{- end }}

{{- define "memory-limits-volumes" -}}
# The cgroups of pods and containers, whose memory limits NVML sets.
- name: cgroups
  hostPath:
    path: /sys/fs/cgroup
    type: Directory
{{- end }}
