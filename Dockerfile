# Two images from one file:
#   docker build --target gateway -t tandem-gateway .    light: no torch
#   docker build --target worker  -t tandem-worker  .    draft and target worker
# PIP_ARGS goes to every pip install, to choose another index or a CPU build of torch.

FROM python:3.11-slim AS base
ARG PIP_ARGS=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# /cache is made here, so that a volume mounted on it belongs to the user that runs.
RUN useradd --create-home --uid 10001 tandem && install -d -o tandem -g tandem /cache
ENV XDG_CACHE_HOME=/cache
WORKDIR /build
# The dependencies first, without the sources: a change of code does not fetch torch again.
COPY pyproject.toml README.md LICENSE ./
COPY tandem/__init__.py tandem/

FROM base AS gateway
RUN pip install ${PIP_ARGS} .
COPY . .
RUN pip install --no-deps ${PIP_ARGS} . && rm -rf /build/*
WORKDIR /home/tandem
USER tandem
EXPOSE 8000
ENV HEALTH_URL=http://127.0.0.1:8000/health
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(os.environ['HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["tandem"]
CMD ["serve", "--host", "0.0.0.0"]

FROM base AS worker
RUN pip install ${PIP_ARGS} '.[worker,grammar]'
COPY . .
RUN pip install --no-deps ${PIP_ARGS} . && rm -rf /build/*
WORKDIR /home/tandem
USER tandem
EXPOSE 8001 8002
ENV HEALTH_URL=http://127.0.0.1:8002/health
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(os.environ['HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["tandem"]
CMD ["target", "--host", "0.0.0.0"]
