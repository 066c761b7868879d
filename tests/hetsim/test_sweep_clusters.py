"""Sweeps on clusters through joblib's backends: dask where it is installed, and what is said where a package or a cluster is missing."""

from __future__ import annotations

import sys
from typing import Any

import joblib
import pytest
from small_clusters import SMALL

from hetsim import load_profile, sweep
from hetsim.errors import UsageError
from hetsim.parallel import split_backend

OVER = {"network.bandwidth_gbit_per_s": [0.5, 5], "training.target_loss": [1.2]}


def small_sweep(**more: Any) -> Any:
    return sweep(load_profile(SMALL), over=OVER, algorithms=["s-sgd", "abs-sgd"], **more)


def test_a_dask_cluster_gives_the_same_figures() -> None:
    distributed = pytest.importorskip("distributed", reason="dask is not installed (pip install 'dask[distributed]')")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        found = small_sweep(backend=f"dask:{cluster.scheduler_address}")
    assert found.table.equals(small_sweep(jobs=1).table)


@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ray", "distributed", "dask", "joblib._dask"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(joblib.parallel.BACKENDS, name, raising=False)  # where it has been registered before
    with pytest.raises(UsageError, match=rf"backend {name} needs a package that is not installed: pip install '{name}"):
        small_sweep(backend=name)


def test_backends_are_read_with_their_addresses() -> None:
    assert split_backend("loky") == ("loky", "")
    assert split_backend("dask:tcp://10.0.0.1:8786") == ("dask", "tcp://10.0.0.1:8786")
    assert split_backend("ray:auto") == ("ray", "auto")
    for wrong, says in (("spark", "unknown backend 'spark'"), ("loky:here", "takes no address")):
        with pytest.raises(UsageError, match=says):
            split_backend(wrong)
