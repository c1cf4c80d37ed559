# The images that the Dockerfile and docker-compose.yml are built on. `make pin-images` writes their digests here and refreshes them.
PYTHON_IMAGE ?= python:3.11-slim-bookworm
POSTGRES_IMAGE ?= postgres:17
