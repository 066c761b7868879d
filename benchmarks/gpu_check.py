"""What has to hold on a machine with one CUDA device, in one run of at most four minutes; a table at the end.

    python benchmarks/gpu_check.py                  # exit code 1 if a step failed
    python benchmarks/gpu_check.py --device cpu     # the same steps, smaller, where there is no GPU

Every step is a process of its own with a time limit of its own, so that the table always comes: a step that hangs is ended, with the
ranks that it started, and called failed. TF32 is off, so that a run and its replay differ by the order of sums alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from hetsim.cluster.spec import Cluster

SKIPPED = 3  # exit code of a step that has a reason
LEAST_S = 5.0  # less than that starts no step: importing torch takes as long [our choice]
# ‖Δ‖/‖x‖ of a run and its replay in one process. CUDA's convolutions add in any order, so wider than on CPUs (1e-12, 1e-5) [our choice].
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
LEARNING_RATE, MOMENTUM = 0.02, 0.9
PICTURES = "gpu_check:pictures"
DIGITS_BYTES = 8.0 * (64 * 64 + 64 + 64 * 10 + 10)


class SkipStepError(Exception):
    """A step that this machine cannot do; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """One line of the table."""

    name: str
    result: str
    seconds: float
    said: str


# ---- steps: each returns its figures, raises SkipStepError, or fails by any other error ----------------------------------------


def device(on: str) -> str:
    """What there is."""
    import torch

    if on == "cpu":
        return f"torch {torch.__version__}, {os.cpu_count()} CPUs"
    found = torch.cuda.get_device_properties(0)
    a = torch.ones(1024, 1024, device="cuda")
    assert float((a @ a).sum()) == 1024.0**3
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, {found.name}, {found.total_memory / 2**30:.0f} GiB"


def shared_s_sgd(on: str) -> str:
    """Two ranks on one device."""
    return live(cluster(2), "s-sgd", on, "float64", 20)


def shared_abs_sgd(on: str) -> str:
    """Four ranks (on a CPU three) on one device, polls and predictions included."""
    return live(cluster(4 if on == "cuda" else 3), "abs-sgd", on, "float64", 30)


def shared_local_sgd(on: str) -> str:
    """Parameters as payload, in float32."""
    return live(cluster(2), "local-sgd", on, "float32", 5)


def nccl_rank(on: str) -> str:
    """A live run of one rank over nccl (on a CPU gloo)."""
    return live(cluster(1), "abs-sgd", on, "float64", 30, backend=nccl(on))


def nccl_wrapper(on: str) -> str:
    """The wrapper in a group of one of nccl (on a CPU gloo), where it makes no collective: its buffers and numbers on the device."""
    import torch
    import torch.distributed as dist

    from abs_sgd import AbsSgd
    from abs_sgd.workloads.digits import digits_mlp

    alone = torch.device(here(on)) if on == "cuda" else None
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(nccl(on), store=store, rank=0, world_size=1, device_id=alone)
    task = digits_mlp(device=here(on))
    model = task.make_model(0)
    trainer = AbsSgd(model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM))
    before, start_s = task.evaluate(model), time.perf_counter()
    for step in range(100):
        inputs, targets = task.batch(np_range(32 * step, 32), 0)
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        trainer.step(len(targets))
    took_s = time.perf_counter() - start_s
    trainer.finish()
    after = task.evaluate(model)
    assert trainer.samples == 3200, f"{trainer.samples} samples of 3200 were applied"
    assert after < 0.5 * before, f"the loss went from {before:.3g} to {after:.3g} only"
    dist.destroy_process_group()
    return f"{trainer.updates} updates, {1e3 * took_s / 100:.2f} ms a step, loss {before:.2f} -> {after:.2f}"


def resnet18(on: str) -> str:
    """ResNet18 (on a CPU a small one) on pictures of CIFAR-10's shape, two ranks."""
    from hetsim.cluster.spec import Workload

    kind = "resnet18" if on == "cuda" else "small_resnet"
    own = Workload(
        name=kind, gradient_bytes=4.0, dataset_samples=1024, model=f"abs_sgd.workloads.models:{kind}", dataset=PICTURES
    )  # fmt: skip
    each = 64 if on == "cuda" else 4
    chosen = dataclasses.replace(cluster(2, each), workload=own)
    return live(chosen, "abs-sgd", on, "float32", 20 if on == "cuda" else 4, max_local=each)


def predicted_and_measured(on: str) -> str:
    """Calibrate, predict, run, compare. Figures only: ranks that share a device are not the independent workers of a profile."""
    from abs_sgd.agreement import figures, relative
    from abs_sgd.calibrate import Settings, calibrate
    from abs_sgd.launch import launch
    from hetsim import simulate

    kind, each = ("resnet18", 32) if on == "cuda" else ("small_resnet", 4)
    model = f"abs_sgd.workloads.models:{kind}"
    sizes = (each, 2 * each, 4 * each)
    found = calibrate(Settings(model=model, data=PICTURES, ranks=2, batches=sizes, repeats=10, device=on))
    assert found is not None
    measured = found.profile.cluster()
    training = dataclasses.replace(measured.training, global_batch_samples=4 * each, micro_batch_samples=each)
    measured = dataclasses.replace(measured, training=training)
    said = []
    for algorithm in ("s-sgd", "abs-sgd"):
        expected = figures(simulate(measured, algorithm, updates=20).schedule, measured, None, None)
        run = launch(measured, algorithm, updates=20, device=on)
        seen = figures(run.schedule, measured, None, None)
        ms, seen_ms = 1e3 * expected.update_period_s, 1e3 * seen.update_period_s
        assert seen_ms > 0
        said.append(
            f"{algorithm}: {ms:.1f} ms an update predicted, {seen_ms:.1f} measured ({relative(seen_ms, ms):.0%} off)"
        )
    return "; ".join(said)


STEPS: dict[str, tuple[float, Callable[[str], str]]] = {  # limit in seconds of a run of four minutes
    "device": (30, device),
    "shared-s-sgd": (50, shared_s_sgd),
    "shared-abs-sgd": (60, shared_abs_sgd),
    "shared-local-sgd": (50, shared_local_sgd),
    "nccl-rank": (50, nccl_rank),
    "nccl-wrapper": (40, nccl_wrapper),
    "resnet18": (80, resnet18),
    "predict-run-compare": (90, predicted_and_measured),
}


# ---- what steps have in common -------------------------------------------------------------------------------------------------


def here(on: str) -> str:
    """The one device."""
    return "cuda:0" if on == "cuda" else "cpu"


def nccl(on: str) -> str:
    """The backend of steps with one rank. Raises SkipStepError where torch has no nccl."""
    import torch.distributed as dist

    if on == "cuda" and not dist.is_nccl_available():
        raise SkipStepError("this torch is built without nccl")
    return "nccl" if on == "cuda" else "gloo"


def np_range(first: int, count: int) -> Any:
    """Sample numbers."""
    import numpy as np

    return np.arange(first, first + count)


def cluster(ranks: int, each: int = 8) -> Cluster:
    """Equal workers; nothing is paced, so their speeds say who gets which share of a batch only."""
    from hetsim.cluster.spec import Cluster, Link, Network, Training, Worker, Workload

    return Cluster(
        name="one-gpu",
        workers=tuple(Worker(rank=r, name=f"r{r}", group="r", node="n", samples_per_s=1000.0) for r in range(ranks)),
        network=Network(links=(Link(bytes_per_s=1e9),) * ranks),
        workload=Workload(name="digits-mlp", gradient_bytes=DIGITS_BYTES, dataset_samples=1437),
        training=dataclasses.replace(Training(), global_batch_samples=each * ranks, micro_batch_samples=each),
    )


def pictures() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Random pictures and labels of CIFAR-10's shape: 1,024 to train on, 64 held out."""
    import torch

    chance = torch.Generator().manual_seed(0)
    x, y = torch.randn(1088, 3, 32, 32, generator=chance), torch.randint(10, (1088,), generator=chance)
    return (x[:1024], y[:1024]), (x[1024:], y[1024:])


def live(
    chosen: Cluster,
    algorithm: str,
    on: str,
    dtype: str,
    updates: int,
    backend: str = "gloo",
    max_local: int | None = None,
) -> str:
    """A live run whose Schedule keeps its promises, whose replicas are equal, and whose replay in one process ends at its parameters."""
    import numpy as np

    from abs_sgd import workloads
    from abs_sgd.launch import launch
    from abs_sgd.replay.inprocess import retrace
    from abs_sgd.update import UpdateRule
    from hetsim.algorithms import make
    from hetsim.schedule import Kind
    from hetsim.schedule.check import check

    rule = UpdateRule(learning_rate=LEARNING_RATE, momentum=MOMENTUM)
    options: dict[str, Any] = {"local_steps": 3} if algorithm == "local-sgd" else {}
    if max_local is not None:
        options["max_local_batch"] = 2 * max_local
    run = launch(
        chosen, algorithm, options=options, task_options={"dtype": dtype}, rule=rule, updates=updates, device=on, backend=backend
    )  # fmt: skip
    schedule = run.schedule
    check(schedule)
    make(algorithm, options).check(schedule)
    assert len(set(run.checksums)) == 1, f"replicas differ: {run.checksums}"
    grads = schedule.rows(Kind.GRAD)
    took_s = schedule.end_s[grads] - schedule.start_s[grads]
    assert (took_s > 0).all(), "a pass took no time"
    task = workloads.get(chosen.workload, **workloads.options_of({"dtype": dtype}, here(on)))
    _, off = retrace(schedule, task, rule, evaluate_every_samples=2**40, parameters_P=run.parameters_P)
    assert off is not None, "the replay diverged"
    assert off <= TOLERANCE[dtype], f"the replay ends {off:.1e} away from the run, more than {TOLERANCE[dtype]:.0e}"
    per_s = schedule.samples[grads].sum() / schedule.end_s[-1]
    ranks, pass_ms = len(run.checksums), 1e3 * np.median(took_s)
    return (
        f"{ranks} rank{'s'[: ranks > 1]}, {dtype}, {run.updates} updates, {per_s:,.0f} samples/s, median pass {pass_ms:.2f} ms, "
        f"replay {off:.1e} off"
    )


# ---- the table -----------------------------------------------------------------------------------------------------------------


def attempt(name: str, command: Sequence[str], limit_s: float) -> Outcome:
    """Run a step's process; its last line is what the table says. Ended with all it started when its time is up."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # as the ranks of a run have it
    environment |= {"NVIDIA_TF32_OVERRIDE": "0", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    start_s = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            out, wrong = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            out, wrong = "", f"ended after its {limit_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it may have left
    took_s = time.monotonic() - start_s
    lines = [line for line in (out if process.returncode in (0, SKIPPED) else wrong).splitlines() if line.strip()]
    result = {0: "ok", SKIPPED: "skipped"}.get(process.returncode, "failed")
    return Outcome(name, result, took_s, lines[-1] if lines else f"exit code {process.returncode}, without a word")


def outcomes(names: Sequence[str], on: str, minutes: float) -> Iterator[Outcome]:
    """Every step's, in order; what there is no time or no device for is skipped."""
    end_s = time.monotonic() + 60.0 * minutes
    no_device = ""
    for name in names:
        left_s = end_s - time.monotonic()
        if no_device or left_s < LEAST_S:
            yield Outcome(name, "skipped", 0.0, no_device or "no time was left")
            continue
        command = [sys.executable, __file__, "--device", on, "--step", name]
        found = attempt(name, command, min(STEPS[name][0] * minutes / 4.0, left_s))
        if name == "device" and found.result == "failed":
            no_device = "there is no such device"
        yield found


def main() -> int:
    """Run, show, and say whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--minutes", type=float, default=4.0, help="for everything together; steps have their share of it"
    )
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        try:
            print(STEPS[asked.step][1](asked.device), flush=True)
        except SkipStepError as reason:
            print(reason, flush=True)
            return SKIPPED
        return 0
    found = []
    for outcome in outcomes(list(STEPS), asked.device, asked.minutes):
        print(f"{outcome.name}: {outcome.result}", file=sys.stderr, flush=True)
        found.append(outcome)
    print(f"{'step':20} {'result':8} {'s':>6}  figures")
    for line in found:
        print(f"{line.name:20} {line.result:8} {line.seconds:6.1f}  {line.said}")
    failed = [line.name for line in found if line.result == "failed"]
    print(f"failed: {', '.join(failed)}" if failed else f"nothing failed on {asked.device}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
