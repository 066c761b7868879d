"""What this machine offers for simulating and training, and what each absence disables. Loads no torch: another process looks at it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from abs_sgd import cpu_shares, namespaces

TORCH_LIMIT_S = 60.0  # a first import from a cold disk takes up to half a minute [our choice]
NVIDIA_LIMIT_S = 10.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ASK_TORCH = """
import json, torch
import torch.distributed as dist
have = dist.is_available()
print(json.dumps({
    "version": torch.__version__,
    "cuda_build": torch.version.cuda,
    "cuda": torch.cuda.is_available(),
    "gloo": have and dist.is_gloo_available() if hasattr(dist, "is_gloo_available") else have,
    "nccl": have and dist.is_nccl_available(),
}))
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked for. `found` describes it, or why it is not there; `disables` and `remedy` are empty where it is."""

    name: str
    ok: bool
    found: str
    disables: str = ""
    remedy: str = ""


def examine() -> tuple[Check, ...]:
    """Everything, in the order in which it is shown. Never raises for what is missing."""
    asking = _ask_torch()  # takes seconds; the rest is looked at meanwhile
    gpus = _gpus()
    before = [_python(), _cores(), _memory()]
    after = [
        _package("scikit-learn", "sklearn", "the workload of handwritten digits", "train"),
        _package("streamlit", "streamlit", "hetsim app, the explorer, which is not in this version", "app"),
        _browser(),
        *_links(),
        _shares(),
    ]
    return (*before, *_torch(asking, gpus), gpus, *after)


def _check(name: str, found: str | None, absent: str, disables: str, remedy: str) -> Check:
    if found is not None:
        return Check(name=name, ok=True, found=found)
    return Check(name=name, ok=False, found=absent, disables=disables, remedy=remedy)


def _python() -> Check:
    return Check(name="python", ok=True, found=f"{platform.python_version()} on {platform.system()}")


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores > 1:
        return Check(name="cores", ok=True, found=str(cores))
    return Check(
        name="cores",
        ok=False,
        found="1",
        disables="ranks that compute at the same time: live runs wait for each other's processor",
        remedy="a machine with several cores",
    )


def _memory() -> Check:
    bytes_ = None
    with suppress(ValueError, OSError, AttributeError):
        bytes_ = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Check(name="memory", ok=True, found=f"{bytes_ / 2**30:.1f} GiB" if bytes_ else "unknown")


def _installed(distribution: str, module: str) -> str | None:
    """The version, without importing the package."""
    if find_spec(module) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown version"


def _package(distribution: str, module: str, disables: str, extra: str) -> Check:
    found = _installed(distribution, module)
    return _check(distribution, found, "not installed", disables, f"pip install 'hetsim[{extra}]'")


def _ask_torch() -> subprocess.Popen[str] | None:
    """Another Python that imports torch, where it is installed: a broken one takes nobody down. -P: not from the working folder."""
    if find_spec("torch") is None:
        return None
    return subprocess.Popen(
        [sys.executable, "-P", "-c", ASK_TORCH],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(asking: subprocess.Popen[str]) -> tuple[dict[str, Any] | None, str]:
    """What torch says of itself, or why it does not."""
    try:
        out, err = asking.communicate(timeout=TORCH_LIMIT_S)
    except subprocess.TimeoutExpired:
        return None, f"import takes more than {TORCH_LIMIT_S:g} s"
    finally:
        asking.kill()
        asking.wait()
    with suppress(ValueError, IndexError):
        return dict(json.loads(out.splitlines()[-1])), ""
    return None, f"does not import: {(err.strip().splitlines() or ['no reason given'])[-1]}"


def _torch(asking: subprocess.Popen[str] | None, gpus: Check) -> Iterator[Check]:
    known, why = _answer(asking) if asking is not None else (None, "not installed")
    version = None
    if known is not None:
        version = f"{known['version']}, {'CUDA ' + known['cuda_build'] if known['cuda_build'] else 'CPU build'}"
    fix = "pip install 'hetsim[train]'" if asking is None else "install torch again (https://pytorch.org/get-started)"
    yield _check("torch", version, why, "training, in virtual time and in real runs", fix)
    if known is None:
        return
    builds = "a build of torch with it (https://pytorch.org/get-started)"
    yield _check("gloo", "available" if known["gloo"] else None, "not in this torch", "real runs on CPUs", builds)
    yield _check(
        "nccl",
        "available" if known["nccl"] else None,
        "not in this torch",
        "real runs over nccl (gloo does the same, slower)",
        builds,
    )
    if gpus.ok and not known["cuda_build"]:
        remedy = "a CUDA build of torch (https://pytorch.org/get-started)"
    else:
        remedy = "a working NVIDIA driver" if gpus.ok else "a machine with an NVIDIA GPU and a CUDA build of torch"
    yield _check(
        "cuda",
        "available" if known["cuda"] else None,
        "torch sees no GPU",
        "training on GPUs (the CPU does the same, slower)",
        remedy,
    )


def _gpus() -> Check:
    text = None
    if (program := shutil.which("nvidia-smi")) is not None:
        query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        with suppress(OSError, subprocess.SubprocessError):
            text = subprocess.run(
                query, capture_output=True, text=True, timeout=NVIDIA_LIMIT_S, check=True, stdin=subprocess.DEVNULL
            ).stdout
    names = [line.strip() for line in (text or "").splitlines() if line.strip()]
    absent = "no nvidia-smi" if program is None else "nvidia-smi reports none"
    disables = "measuring and training on GPUs"
    return _check("gpus", "; ".join(names) or None, absent, disables, "a machine with NVIDIA GPUs and their driver")


def _browser() -> Check:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    disables = "the tests of how pages look (reports open in any browser)"
    return _check("browser", found, "no Chromium or Chrome", disables, "install the package chromium")


def _links() -> Iterator[Check]:
    disables = "links shaped to the profile's: ranks on one machine talk as fast as it can, and the run says so"
    probe = namespaces.probe()
    if probe.ok:
        yield Check(name="shaped links", ok=True, found="root, ip, tc, htb and network namespaces")
    for lack in probe.lacks:
        yield Check(name="shaped links", ok=False, found=lack.what, disables=disables, remedy=lack.remedy)
    yield from _left_over()


def _shares() -> Check:
    probe = cpu_shares.probe()
    disables = "ranks with unequal shares of the cores (calibrate, validate --unpaced --cpu-shares)"
    remedy = "run as root on Linux, where control groups can be written to"
    found = "root, control groups with quotas of cores" if probe.ok else None
    return _check("shares of cores", found, probe.reason, disables, remedy)


def _left_over() -> Iterator[Check]:
    """What a killed run has left, where it has."""
    with suppress(namespaces.NetLabError):
        if left := namespaces.stale():
            found = f"{len(left)} network namespaces of killed runs: {left[0]}" + ", …" * (len(left) > 1)
            disables = "nothing: they take a little memory"
            remedy = "the next shaped run removes them (hetsim validate as root)"
            yield Check(name="leftovers", ok=False, found=found, disables=disables, remedy=remedy)
