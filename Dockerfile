# One image for all verbs: the DaemonSet runs node-plugin, the Deployment runs webhook. Any Debian 13 base works; NVIDIA's
# libraries need glibc.
# Debian's official image; dependabot proposes each new digest, with Debian's security updates.
FROM debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f AS base

FROM base AS build
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all: PIP_REQUIRE_VIRTUALENV=0
RUN python3 -m venv /build \
    && python3 -m venv --without-pip /opt/tensorfusion-dra
COPY hack/requirements/ hack/requirements/
# The secret is a pip.conf for machines that cannot reach the public index (hack/image); without it pip uses its defaults.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /build/bin/pip install --require-hashes --requirement hack/requirements/build.txt \
    && /build/bin/pip --python /opt/tensorfusion-dra/bin/python install --no-compile --require-hashes --requirement hack/requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY tensorfusion_dra/ tensorfusion_dra/
# run.txt leaves out the package kubernetes, which only reads kubeconfigs. The extensions of CEL that selectors do not use
# take 18 MiB, and the sources of its build 16. Modules are compiled here, because the root file system is read-only at run
# time, and with unchecked hashes, because no file changes there. This saves a second and 25 MiB at each start. With a fixed
# seed, each build writes the same bytes. Debian's own modules are compiled again below, because a build that sets all files'
# times (hack/image) makes the others look stale.
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /build/wheels . \
    && /build/bin/pip --python /opt/tensorfusion-dra/bin/python install --no-compile --no-index --no-deps /build/wheels/*.whl \
    && cd /opt/tensorfusion-dra/lib/python3*/site-packages/cel_expr_python/ext \
    && rm -r ext_encoders.* ext_math.* ext_proto.* ../../bazel-project \
    && PYTHONHASHSEED=0 python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/tensorfusion-dra/lib

FROM base
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && PYTHONHASHSEED=0 python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash /usr/lib/python3* \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/cache/ldconfig/* /var/log/* /usr/share/doc/* /usr/share/man/*
COPY --from=build /opt/tensorfusion-dra /opt/tensorfusion-dra
ENV PATH=/opt/tensorfusion-dra/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1
ARG VERSION=0.1.0
ARG REVISION=unknown
# The base, and the address of the repository, which hack/image and hack/release know.
ARG BASE=
ARG BASE_DIGEST=
ARG URL=
LABEL org.opencontainers.image.title="tensorfusion-dra" \
      org.opencontainers.image.description="Kubernetes DRA node driver for GPUs that several pods share" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${URL}" \
      org.opencontainers.image.url="${URL}" \
      org.opencontainers.image.documentation="${URL}/blob/v${VERSION}/docs/install.md" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
# The webhook's user. The node plugin's pod sets runAsUser: 0, without capabilities: its sockets have to be in the
# kubelet's folders, which belong to root.
USER 65532:65532
# Only for runtimes other than Kubernetes, which has its own probes. Both verbs serve /healthz on this port.
ENV TENSORFUSION_DRA_HEALTH_PORT=8081
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["python3", "-I", "-S", "-c", \
    "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['TENSORFUSION_DRA_HEALTH_PORT']), timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
# As process 1 of a container, Python would lose a SIGTERM that arrives before its first line. A blocked signal waits.
ENTRYPOINT ["env", "--block-signal=INT,TERM", "tensorfusion-dra"]
CMD ["node-plugin"]
