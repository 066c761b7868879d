"""Clusters: the profile a person writes, and the cluster it resolves to.

load_profile(source)        a shipped profile's name, a path, YAML text, or None for the default -> Profile
shipped_profiles()          name to description
Profile                     .cluster(), .to_yaml(), .digest()
profile_schema()            JSON Schema for editors
init_profile(gpus)          a commented profile to start from
import_steps(csv)           a profile from one's own step times
spec                        what the simulator reads: Cluster, Worker, Link, ...
catalogue                   GPUs and workloads with sources
"""

from __future__ import annotations

from hetsim.cluster.imports import StepFit, import_steps
from hetsim.cluster.init import init_profile
from hetsim.cluster.loader import load_profile
from hetsim.cluster.profile import Profile
from hetsim.cluster.schema import profile_schema
from hetsim.cluster.shipped import DEFAULT_PROFILE, shipped_profiles
from hetsim.cluster.spec import Cluster

__all__ = [
    "DEFAULT_PROFILE",
    "Cluster",
    "Profile",
    "StepFit",
    "import_steps",
    "init_profile",
    "load_profile",
    "profile_schema",
    "shipped_profiles",
]
