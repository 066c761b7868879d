"""Training under torchrun: one rank per worker of a profile, on one machine or several.

    torchrun --nproc-per-node 4 -m abs_sgd my.yaml -a abs-sgd -o run --checkpoint-every 100
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29400 --max-restarts 3 \
        -m abs_sgd my.yaml -a abs-sgd -o run --checkpoint-every 100

`run` then holds what `abs_sgd.launch` leaves (`abs_sgd.run_folder`): `hetsim replay run` and `hetsim report run` read it. Ranks are workers
in the profile's order. Unpaced unless `--pace`. A run that torchrun starts again goes on from its newest checkpoint by itself; one that
was started anew by hand does so with `--resume`. With several machines all must see the folder of `-o` for that. Exit codes: 0 fine, 1 the
run failed, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from abs_sgd import workloads
from abs_sgd.checkpoint import CHECKPOINTS, last_checkpoint, newest
from abs_sgd.devices import BACKENDS, DEVICES, FOREVER, device_of, identity, join, refuse_shared_gpus
from abs_sgd.predictor import rule_of
from abs_sgd.presence import ASSEMBLE_S, Presence, assemble, say
from abs_sgd.processes import LOOPBACK
from abs_sgd.run_folder import facts_of, write_run
from abs_sgd.runtime.keeping import Keeping, keeping_of
from abs_sgd.runtime.run import Limits, Pacing, check_live, meet, run_rank
from abs_sgd.runtime.wire import PeerLostError
from hetsim.algorithms import Algorithm
from hetsim.cluster import Profile, load_profile
from hetsim.convergence.predictor import Setting
from hetsim.errors import HetsimError, UsageError
from hetsim.labels import parse

FAILED, USAGE = 1, 2
ENDED_BY_SIGNAL = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Place:
    """Where this process stands, as torchrun says it in the environment."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int
    run_id: str
    restarts: int
    agent_store: bool

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """Raises UsageError outside torchrun."""
        try:
            rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"{error} is not in the environment: start one rank per worker, as `torchrun --nproc-per-node N -m abs_sgd PROFILE …` does"
            ) from None
        return cls(
            rank=rank,
            world=world,
            local_rank=int(environment.get("LOCAL_RANK", rank)),
            local_world=int(environment.get("LOCAL_WORLD_SIZE", world)),
            address=address,
            port=port,
            run_id=environment.get("TORCHELASTIC_RUN_ID", "none"),
            restarts=int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
            agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    def connect(self, timeout_s: float) -> Any:
        """A connection to the job's store; rank 0 serves it where no agent does."""
        try:
            return dist.TCPStore(  # type: ignore[attr-defined]
                self.address,
                self.port,
                is_master=self.rank == 0 and not self.agent_store,
                wait_for_workers=False,
                multi_tenant=True,
                timeout=timedelta(seconds=timeout_s),
            )
        except (dist.DistError, RuntimeError) as error:
            first = str(error).splitlines()[0]
            raise UsageError(f"no store at {self.address}:{self.port}; rank 0 has not come up ({first})") from None


def main(arguments: Sequence[str]) -> int:
    """Train as this rank; the exit code."""
    said = _parser().parse_args(arguments)
    try:
        place = Place.of(os.environ)
        profile, algorithm = _checked(said, place)
    except HetsimError as error:
        if int(os.environ.get("RANK", 0)) == 0:
            say(f"error: {error}")
        return USAGE
    return _Rank(said, place, profile, algorithm).train()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun … -m abs_sgd", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("profile", metavar="PROFILE", help="a profile's file, or a shipped one's name")
    add("-a", "--algorithm", required=True, metavar="NAME", help="name or name:option=value,…")
    add("-o", "--output", required=True, type=Path, metavar="DIR", help="folder for results and checkpoints")
    add("--updates", type=int, metavar="K", help="end after so many updates")
    add(
        "--samples",
        type=int,
        metavar="N",
        help="end after so many samples (default: the profile's training.max_samples)",
    )
    add("--checkpoint-every", type=int, default=0, metavar="N", help="updates between two checkpoints (default: none)")
    add("--resume", action="store_true", help="go on from the newest checkpoint in DIR, if there is one")
    add("--workload", metavar="NAME", help="what to train on (default: the profile's workload)")
    add("--dtype", metavar="NAME", help="float32, float64, … (default: the workload's)")
    add("--seed", type=int, default=0, metavar="N")
    add(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a field of the profile",
    )
    add("--pace", action="store_true", help="passes take the profile's time; a slower machine is an error")
    add("--pace-tolerance", type=float, default=0.05, metavar="X", help="with --pace: how much longer a pass may take")
    add("--pad", action="store_true", help="send as many bytes as the profile says")
    add("--device", choices=DEVICES, default="cpu")
    add("--backend", choices=BACKENDS, default="gloo")
    add(
        "--assemble-s",
        type=float,
        default=ASSEMBLE_S,
        metavar="S",
        help="how long to wait for ranks at the start (default: %(default)s)",
    )
    return parser


def _checked(said: argparse.Namespace, place: Place) -> tuple[Profile, Algorithm]:
    """Raises UsageError, ProfileError."""
    profile = load_profile(said.profile, overrides=said.overrides)
    cluster = profile.cluster()
    if cluster.n != place.world:
        raise UsageError(
            f"{cluster.name} has {cluster.n} workers, {place.world} ranks were started: nodes times --nproc-per-node must be {cluster.n}"
        )
    algorithm = parse(said.algorithm).algorithm(cluster.options)
    check_live(algorithm)
    if algorithm.has_server:
        raise UsageError(
            f"{algorithm.name}: runs with a parameter server are started by abs_sgd.launch, not by torchrun"
        )
    for name in ("updates", "samples"):
        if getattr(said, name) is not None and getattr(said, name) < 1:
            raise UsageError(f"--{name}: a run needs at least one")
    return profile, algorithm


class _Rank:
    """This process's part of the run."""

    def __init__(self, said: argparse.Namespace, place: Place, profile: Profile, algorithm: Algorithm) -> None:
        self.said, self.place, self.profile, self.algorithm = said, place, profile, algorithm
        self.cluster = profile.cluster()
        self.name = self.cluster.workers[place.rank].name
        self.presence: Presence | None = None
        self.speaking = threading.Lock()

    def train(self) -> int:
        """The exit code. Whatever goes wrong is said in one line."""
        _on_term(self._stopped)
        try:
            self._train()
        except BaseException as error:
            self.speaking.acquire()  # never given back: this process ends, and says why once
            self._say(error)
            sys.stderr.flush()
            os._exit(
                USAGE if isinstance(error, UsageError) else FAILED
            )  # a broken group may hang while it is taken down
        os._exit(0)

    def _train(self) -> None:
        said, place, cluster = self.said, self.place, self.cluster
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
        names = [w.name for w in cluster.workers]
        store = place.connect(said.assemble_s)
        attempt = assemble(store, place.rank, names, said.assemble_s)
        clerk, group, present = (
            _part(place.connect(said.assemble_s), f"{attempt}/{part}") for part in ("clerk", "group", "present")
        )
        self.presence = Presence(present, place.rank, names, self._saved)
        task = workloads.get(said.workload or cluster.workload, **self._task_options())
        training = cluster.training
        rule = rule_of(training, Setting.of(training))
        keeping = self._keeping(_part(store, attempt), task.name, rule)
        if said.backend == "nccl":
            refuse_shared_gpus(group, place.rank, place.world, identity(torch.device(task.device)))
        if place.local_world == place.world:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        join(said.backend, task.device, store=group, rank=place.rank, world_size=place.world, timeout=FOREVER)
        pacing = Pacing(profile=said.pace, pad=said.pad, tolerance=said.pace_tolerance)
        result = run_rank(
            cluster,
            self.algorithm,
            task,
            rule,
            store=clerk,
            seed=said.seed,
            limits=Limits(updates=said.updates, samples=said.samples),
            pacing=pacing,
            profile_yaml=self.profile.to_yaml(),
            keeping=keeping,
            attend=self.presence.watch,
        )
        if result.schedule is not None:
            facts = facts_of(task.name, self._task_options(), rule, pacing, said.backend)
            write_run(said.output, result, cluster=cluster, algorithm=self.algorithm, facts=facts)
            say(f"{result.progress.updates} updates, {result.progress.samples} samples; wrote {said.output}")
        meet()  # nobody leaves, and with it its connections, before the files are there
        self.presence.close()
        dist.destroy_process_group()

    def _task_options(self) -> dict[str, Any]:
        device = device_of(self.place.local_rank, self.place.local_world, self.said.backend, self.said.device)
        return workloads.options_of({"dtype": self.said.dtype} if self.said.dtype else {}, str(device))

    def _keeping(self, store: Any, workload: str, rule: Any) -> Keeping | None:
        """Decided by rank 0, told to all: going on where any rank was started again, or where the job is the checkpoint's own."""
        rank, said = self.place.rank, self.said
        store.set(f"restarts/{rank}", str(self.place.restarts))
        if rank == 0:
            again = any(int(store.get(f"restarts/{other}")) for other in range(self.place.world))
            try:
                Path(said.output).mkdir(parents=True, exist_ok=True)
                found = newest(said.output / CHECKPOINTS)
                own = (
                    found is not None
                    and self.place.run_id not in ("", "none")
                    and found.meta.get("job") == self.place.run_id
                )
                resume = said.resume or again or own
                made = keeping_of(
                    said.output,
                    said.checkpoint_every,
                    resume,
                    self.cluster,
                    self.algorithm,
                    workload,
                    {"dtype": said.dtype},
                    rule,
                    said.seed,
                )
            except (HetsimError, OSError) as error:
                store.set("keeping", json.dumps({"refused": str(error)}))
                raise UsageError(str(error)) from None
            store.set("keeping", json.dumps({"run": made.run, "resume": made.resume} if made else {}))
            if made and made.resume:
                say(f"going on from update {made.resume} in {made.folder}")
        told = json.loads(store.get("keeping"))
        if "refused" in told:
            raise _SaidElsewhere(told["refused"])
        if not told:
            return None
        return Keeping(
            folder=str(said.output / CHECKPOINTS), every=said.checkpoint_every, job=self.place.run_id, **told
        )

    def _saved(self) -> str:
        return last_checkpoint(self.said.output / CHECKPOINTS) if self.said.checkpoint_every or self.said.resume else ""

    def _say(self, error: BaseException) -> None:
        own = f"rank {self.place.rank} ({self.name})"
        if isinstance(error, _SaidElsewhere):
            return
        known = isinstance(error, HetsimError) and not isinstance(error, PeerLostError)
        if not known and self.presence is not None and (other := self.presence.verdict()):
            say(f"{own}: {other}")
            return
        message = str(error) if isinstance(error, HetsimError) else f"{type(error).__name__}: {error}"
        if self.presence is not None:
            self.presence.failed(message)
        say(f"{own} failed: {message}")

    def _stopped(self) -> None:
        """torchrun ends this rank: because another has gone, which is then named, or because somebody wants it so."""
        if self.speaking.acquire(blocking=False):
            why = self.presence.verdict(patient=False) if self.presence is not None else ""
            say(f"rank {self.place.rank} ({self.name}) is ended by a signal{': ' * bool(why)}{why}")
            os._exit(ENDED_BY_SIGNAL)


def _part(store: Any, name: str) -> Any:
    """What an attempt, and a part of it, keeps apart from the others."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


class _SaidElsewhere(UsageError):
    """Rank 0 has said it."""


def _on_term(stopped: Any) -> None:
    """Call `stopped` on a thread as soon as the signal comes: the main thread may be blocked in a collective and would not hear it."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def listen() -> None:
        while os.read(read, 1) != bytes([signal.SIGTERM]):
            pass
        stopped()

    threading.Thread(target=listen, name="signals", daemon=True).start()
