# Images of the services in docker-compose.yml, and of the environment servers that runs start (AGENTGYM_ENVIRONMENT_BACKEND=container).
# All take their versions from locks/.
#   make images                     builds agentgym-env-light, agentgym-env-java and agentgym-env-browser
#   docker build --target worker --build-arg DEVICE=gpu -t agentgym-worker-gpu .
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DO_NOT_TRACK=1 \
    MLFLOW_DISABLE_TELEMETRY=true PREFECT_SERVER_ANALYTICS_ENABLED=false
WORKDIR /app
COPY locks/ locks/
# The CPU build of torch needs another index than PyPI on x86-64: docker build --build-arg PIP_EXTRA_INDEX_URL=... (see locks/install.sh).
ARG PIP_EXTRA_INDEX_URL

# A server of any world that needs nothing but Python: no torch, no Prefect, no MLflow.
FROM base AS env-packages
# Of Minecraft's data, 100 MB, TextCraft reads one version's, some of which is kept with earlier ones.
RUN locks/image.sh worlds \
    && cd "$(python -c 'import minecraft_data; print(minecraft_data.__path__[0])')/data/data" && rm -r bedrock \
    && find pc -mindepth 1 -maxdepth 1 ! -name '1.16*' ! -name 1.13.2 -exec rm -r {} +
COPY configs/ configs/
COPY environments/ environments/
# COPY keeps the modes of the checkout, which a umask of 077 closes to other users.
RUN chmod -R a+rX .

# SearchQA's embedded questions, built here once and not by every container that starts, from packages of 330 MB that no server needs.
FROM env-packages AS searchqa-facts
RUN locks/image.sh searchqa-facts
# The index is opened under a lock file, which is in /tmp, as nothing else can be written. (A volume in its place would be left over by
# every container of Compose.)
RUN python -m environments.searchqa.build facts --output /searchqa/facts && chmod -R a+rX /searchqa \
    && ln -sf /tmp/.tantivy-meta.lock /searchqa/facts/bm25/.tantivy-meta.lock \
    && ln -sf /tmp/.tantivy-meta.lock /searchqa/facts/islands/bm25/.tantivy-meta.lock

FROM env-packages AS env-light
COPY --from=searchqa-facts /searchqa /searchqa
ENV HOME=/tmp SEARCHQA_DATA=/searchqa/facts
USER 65534:65534
EXPOSE 8000
# Patient, since on a busy machine the question alone takes seconds; the first good answer ends the start.
HEALTHCHECK --interval=20s --timeout=20s --start-period=5m --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://localhost:8000/health', timeout=3)"]
# Wants AGENTGYM_ENVIRONMENT_TOKEN, or --no-token behind the world: docker run IMAGE textcraft --no-token
ENTRYPOINT ["python", "-m", "environments", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["textcraft"]

# SciWorld's simulator is a Java program.
FROM env-light AS env-java
USER root
RUN apt-get update && apt-get install -y --no-install-recommends default-jre-headless && rm -rf /var/lib/apt/lists/*
RUN locks/image.sh sciworld
USER 65534:65534
CMD ["sciworld"]

# WebArena opens its sites in a browser.
FROM env-light AS env-browser
USER root
RUN apt-get update && apt-get install -y --no-install-recommends chromium-headless-shell libatomic1 && rm -rf /var/lib/apt/lists/*
RUN locks/image.sh webarena
USER 65534:65534
CMD ["webarena"]

# The Prefect server, and MLflow's behind the login, on PostgreSQL.
FROM base AS services
RUN locks/image.sh services && pip install --no-deps --require-hashes -r locks/postgres.lock
COPY pyproject.toml README.md LICENSE ./
COPY configs/ configs/
COPY environments/ environments/
COPY tasks/ tasks/
RUN chmod -R a+rX . && pip install --no-deps --no-build-isolation -e . && mkdir /artifacts && chown 65534:65534 /artifacts
USER 65534:65534
ENV HOME=/tmp PREFECT_UI_STATIC_DIRECTORY=/tmp/prefect-ui

# What runs flows and trainers, and the viewer.
FROM base AS worker
ARG DEVICE=cpu
RUN apt-get update && apt-get install -y --no-install-recommends g++ libnuma1 libtcmalloc-minimal4 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-deps --require-hashes -r locks/build.lock \
    && pip install --no-deps --require-hashes --no-build-isolation -r locks/${DEVICE}.lock \
    && { [ "$DEVICE" != cpu ] || pip install --no-deps -r locks/torch-cpu.lock; }
# The build for CUDA cannot even be imported without CUDA's libraries, which cpu.lock leaves out: better said here than by the first run.
RUN [ "$DEVICE" != cpu ] || python -c "import torch" || { echo "The CPU build of torch is needed: set PIP_EXTRA_INDEX_URL, see docker-compose.yml" >&2; exit 1; }
COPY pyproject.toml README.md LICENSE prefect.yaml automations.yaml ./
COPY configs/ configs/
COPY environments/ environments/
COPY tasks/ tasks/
COPY flows/ flows/
COPY dashboards/ dashboards/
COPY docs/evidence/registry.jsonl docs/evidence/
RUN chmod -R a+rX . && pip install --no-deps --no-build-isolation -e . \
    && useradd --create-home agentgym && mkdir -p -m 700 /runs && mkdir -p /home/agentgym/.cache/huggingface && chown -R agentgym /runs /home/agentgym/.cache
USER agentgym
ENV AGENTGYM_RUNS=/runs PREFECT_DEFAULT_WORK_POOL_NAME=agentgym
VOLUME /runs
# Sets up the server, registers the deployments of prefect.yaml, then runs what is triggered or scheduled.
CMD ["sh", "-euc", "python -m tasks.provision.prefect_set_up && python -m tasks.provision.deploy \
    && exec python -m tasks.provision.worker start --pool agentgym --type process --limit 4 --with-healthcheck"]
