"""The OpenAPI document of our dialect, generated from the types that validate requests."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from environments.environment import World
from environments.protocol import Error, Health, Replies, TaskList, WorldInfo
from environments.server.openenv import PATHS


def document(world: World, operations: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
    """Return OpenAPI 3.1 of the operations and the descriptive paths."""
    reads: dict[str, type[msgspec.Struct]] = {
        "/health": Health,
        "/v1/world": WorldInfo,
        "/v1/tasks": TaskList,
    }
    types = [*operations.values(), *reads.values(), Replies, Error]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schema = dict(zip(types, schemas, strict=True))
    failure = {"type": "object", "required": ["error"], "properties": {"error": schema[Error]}}

    def answers(kind: Any, text: str) -> dict[str, Any]:
        failed = {"description": "The request failed as a whole.", "content": _json(failure)}
        return {"200": {"description": text, "content": _json(kind)}, "default": failed}

    paths: dict[str, Any] = {
        f"/v1/{name}": {
            "post": {
                "summary": _summary(item),
                "operationId": name,
                "requestBody": {
                    "required": True,
                    "content": _json(
                        {
                            "type": "object",
                            "required": ["items"],
                            "properties": {"items": {"type": "array", "items": schema[item]}},
                        }
                    ),
                },
                "responses": answers(
                    schema[Replies], "One reply per item, each with its own status."
                ),
            }
        }
        for name, item in operations.items()
    }
    for path, kind in reads.items():
        paths[path] = {"get": {"responses": answers(schema[kind], _summary(kind))}}
    paths["/v1/tasks"]["get"]["parameters"] = [
        {"name": "split", "in": "query", "schema": {"type": "string", "default": "train"}},
        {"name": "tags", "in": "query", "schema": {"type": "string", "enum": ["0", "1"]}},
    ]
    ok = answers({"type": "object"}, "As in OpenEnv's protocol.")
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Environment server: {world.name}", "version": world.version},
        "paths": paths | {path: {method: {"responses": ok}} for path, method in PATHS.items()},
        "components": {"schemas": components},
    }


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _summary(kind: type[msgspec.Struct]) -> str:
    return (inspect.getdoc(kind) or "").split("\n")[0]
