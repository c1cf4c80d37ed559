"""The OpenAPI document of our dialect, generated from the types that validate requests."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from environments.environment import World
from environments.protocol import Error, Health, Replies, TaskList, WorldInfo
from environments.server.openenv import PATHS

STATUSES = {
    "400": "The body is not JSON in UTF-8, or comes in too many small chunks.",
    "404": "There is no such session.",
    "409": "The turn is wrong, the episode is over, or the session of a repeated key has been played on.",
    "410": "The session has ended.",
    "413": "The body, or the number of items, is too large.",
    "422": "A field is missing, unknown or wrong.",
    "500": "The world failed; the session has ended.",
    "503": "The session limit is reached, the session is still opening, or the server is ending; try again later.",
}


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
    failures = {
        status: {"description": text, "content": {"application/json": {"schema": failure}}}
        for status, text in STATUSES.items()
    }
    paths: dict[str, Any] = {}
    for name, item in operations.items():
        items = {
            "type": "object",
            "required": ["items"],
            "properties": {"items": {"type": "array", "items": schema[item]}},
        }
        paths[f"/v1/{name}"] = {
            "post": {
                "summary": (inspect.getdoc(item) or "").split("\n")[0],
                "operationId": name,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": items}},
                },
                "responses": {
                    "200": _ok(schema[Replies], "One reply per item, each with its own status."),
                    **failures,
                },
            }
        }
    for path, type_ in reads.items():
        paths[path] = {
            "get": {
                "responses": {
                    "200": _ok(schema[type_], (inspect.getdoc(type_) or "").split("\n")[0])
                }
            }
        }
    paths["/v1/tasks"]["get"]["parameters"] = [
        {
            "name": "split",
            "in": "query",
            "schema": {
                "type": "string",
                "default": "train",
                "examples": ["train", "validation", "test"],
            },
        },
        {
            "name": "tags",
            "in": "query",
            "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
        },
    ]
    ok = {
        "description": "As in OpenEnv's protocol.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    paths |= {path: {method: {"responses": {"200": ok}}} for path, method in PATHS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Environment server: {world.name}", "version": world.version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _ok(schema: Any, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
