"""The JSON Schema of profiles, generated from the models, for editors that complete and underline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hetsim.cluster import catalogue
from hetsim.cluster.profile import SCHEMA_VERSION, Profile

SCHEMA_PATH = Path(__file__).parent.parent / "schemas" / f"profile-{SCHEMA_VERSION}.json"


def profile_schema() -> dict[str, Any]:
    """The schema of a profile file (JSON Schema 2020-12)."""
    schema = Profile.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "hetsim cluster profile"
    workload, gpu = schema["properties"]["workload"], schema["$defs"]["WorkerEntry"]["properties"]["gpu"]
    workload["examples"], gpu["examples"] = list(catalogue.workload_names()), list(catalogue.gpu_names())
    # A profile that extends another needs nothing of its own.
    required = schema.pop("required")
    return schema | {"if": {"not": {"required": ["extends"]}}, "then": {"required": required}}


def schema_text() -> str:
    """What the shipped schema file holds."""
    return json.dumps(profile_schema(), indent=2, ensure_ascii=False) + "\n"
