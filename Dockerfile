# Inference Gateway as a container image.
#     docker build -t inference-gateway .
#     docker run --read-only --tmpfs /tmp -p 8080:8080 -p 127.0.0.1:8081:8081 \
#         -e GATEWAY_BACKENDS=http://gpu1:8000 inference-gateway
# The root file system may be read-only: the logs go to stdout and stderr, nothing else is written.

# Pin by digest what you build for production: --build-arg BASE=python:3.13-slim-trixie@sha256:...
ARG BASE=python:3.13.9-slim-trixie
# The same Python on the same Debian, with a C compiler; nothing of it is in the image.
ARG BUILD_BASE=python:3.13.9-trixie

# hadolint ignore=DL3006 # the tag is in the argument
FROM ${BUILD_BASE} AS build
WORKDIR /src
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile uv==0.13.9
ENV PATH=/opt/build/bin:$PATH \
    VIRTUAL_ENV=/opt/gateway \
    UV_LINK_MODE=copy
# The locked versions first: this layer is built anew only when one of them changes.
COPY deploy/docker/requirements.txt ./
RUN uv venv --quiet /opt/gateway \
 && uv pip install --quiet --no-cache --compile-bytecode --no-deps --require-hashes -r requirements.txt
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY gateway ./gateway
# 1 compiles the modules that a request runs through, in some minutes; 0 needs no compiler: BUILD_BASE may be BASE.
ARG GATEWAY_COMPILE=0
RUN uv pip install --quiet --no-cache --compile-bytecode --no-deps . \
 && uv pip check --quiet \
 && rm -f /opt/gateway/.lock  # uv's own, which anybody may write

# hadolint ignore=DL3006 # as above
FROM ${BASE}
LABEL org.opencontainers.image.title="Inference Gateway" \
      org.opencontainers.image.description="Keeps inference servers fast when more comes in than they can serve" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 65532:65532
EXPOSE 8080 8081
# The process lives; whether it should get traffic is /readyz, for who can act on it. Without curl in the image.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('GATEWAY_ADMIN_PORT', '8081') + '/livez', timeout=2)"]
# As process 1, by exec: SIGTERM reaches it and drains it.
STOPSIGNAL SIGTERM
ENTRYPOINT ["gateway"]
CMD ["serve"]
