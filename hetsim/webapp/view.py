"""View: everything that a picture of the explorer depends on, and the link and the command that lead back to it.

Frozen and hashable, so that pictures are cached by it. Whatever is in it may come from a stranger's link or file: the profile is loaded as
untrusted, and a View that cannot be is refused when it is made, in words.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hetsim.cluster import DEFAULT_PROFILE, Profile, load_profile
from hetsim.cluster.document import MAX_TEXT_BYTES
from hetsim.cluster.shipped import shipped_paths
from hetsim.errors import Problem, ProfileError, UsageError, nearest
from hetsim.export import safe_label
from hetsim.labels import ABLATION, LITERAL_READING, contenders

MAX_WORKERS = 256  # of a picture [our choice]: beyond it the command line does better
MAX_OVERRIDES = 200  # [our choice] a dozen for the network and training, a few for each of many groups of workers
MAX_OVERRIDE = 2_000  # characters of one
MAX_ALGORITHMS = 16  # [our choice] more lines than one can tell apart
MAX_SEED = 2**31 - 1
MAX_LINK = 6_000  # characters of a link's query [our choice]: servers and chat programs cut longer links
DEFAULT_ALGORITHMS = (
    "s-sgd",
    "lb-bsp",
    "one-step-delay",
    "one-step-delay-balanced",
    "local-sgd",
    "asgd",
    "ssp",
    "abs-sgd",
)
FILE = "profile.yaml"  # what an own profile is called in messages
KEYS = ("profile", "yaml", "set", "algorithms", "seed", "tuned", "target")


@dataclass(frozen=True, kw_only=True)
class View:
    """A cluster, what is asked of it, and how.

    `source`: a shipped profile's name, or YAML text (it has a newline). `overrides`: `path.to.key=value`. `algorithms`: labels.
    `tuned`: learning rates by tuning, not the profile's. `target`: the loss to reach, instead of the profile's.
    Raises UsageError for what cannot be or is too much; the profile itself is looked at by `profile`.
    """

    source: str = DEFAULT_PROFILE
    overrides: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    seed: int = 0
    tuned: bool = True
    target: float | None = None

    def __post_init__(self) -> None:
        _check_source(self.source)
        _check_overrides(self.overrides)
        labels = tuple(c.label for c in contenders(self.algorithms[: MAX_ALGORITHMS + 1]))
        if len(labels) > MAX_ALGORITHMS:
            raise UsageError(f"more than {MAX_ALGORITHMS} algorithms, the most that the explorer compares")
        object.__setattr__(self, "algorithms", labels)
        if not 0 <= self.seed <= MAX_SEED:
            raise UsageError(f"seed {self.seed}: a whole number from 0 to {MAX_SEED:,}")
        if self.target is not None and not (0 < self.target <= 1e12):
            raise UsageError(f"a target of {self.target:g} cannot be reached; it must be above 0")

    @property
    def shipped(self) -> bool:
        """Whether the profile is one that comes with hetsim."""
        return "\n" not in self.source

    def profile(self) -> Profile:
        """The profile with the overrides, loaded as untrusted. Raises ProfileError with all problems."""
        stated = () if self.target is None else (f"training.target_loss={self.target!r}",)
        loaded = _loaded(self.source, (*self.overrides, *stated))
        workers = sum(entry.count or 1 for entry in loaded.workers)
        if workers > MAX_WORKERS:
            message = f"{workers:,} workers; the explorer shows up to {MAX_WORKERS}"
            raise ProfileError(FILE, [Problem("workers", message, "hetsim compare takes more")])
        return loaded

    def plain(self) -> Profile:
        """The profile without the overrides. Raises ProfileError."""
        return _loaded(self.source, ())

    def query(self) -> dict[str, str]:
        """The view as parameters of a link; what is as by default is left out. Raises UsageError where a profile is too large for it."""
        out: dict[str, str] = {}
        if not self.shipped:
            out["yaml"] = _packed(self.source)
        elif self.source != DEFAULT_PROFILE:
            out["profile"] = self.source
        if self.overrides:
            out["set"] = "\n".join(self.overrides)
        if self.algorithms != DEFAULT_ALGORITHMS:
            out["algorithms"] = ";".join(self.algorithms)
        if self.seed:
            out["seed"] = str(self.seed)
        if not self.tuned:
            out["tuned"] = "no"
        if self.target is not None:
            out["target"] = repr(self.target)
        return out

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> View:
        """The view of a link; parameters that are not a view's are left alone. Raises UsageError in words for what cannot be."""
        if "yaml" in query and "profile" in query:
            raise UsageError("the link names a profile and brings another; it must be one of them")
        source = _unpacked(query["yaml"]) if "yaml" in query else query.get("profile", DEFAULT_PROFILE)
        if "profile" in query and "\n" in source:
            raise UsageError("the link's profile is not the name of one")
        tuned = query.get("tuned", "yes")
        if tuned not in ("yes", "no"):
            raise UsageError(f"the link's tuned is {_short(tuned)}; yes or no")
        labels = query.get("algorithms")
        return cls(
            source=source,
            overrides=tuple(query["set"].split("\n")) if query.get("set") else (),
            algorithms=DEFAULT_ALGORITHMS if labels is None else tuple(filter(None, labels.split(";"))),
            seed=_seed(query.get("seed", "0")),
            tuned=tuned == "yes",
            target=_target(query["target"]) if "target" in query else None,
        )

    def file_name(self) -> str:
        """What the profile's file is called in commands and downloads."""
        return self.source if self.shipped else f"{safe_label(self.plain().name)}.yaml"

    def command(self, quick: bool = False) -> str:
        """The command that gives this picture in a terminal, over all seeds or the quick one; an own profile is read from the file that
        the explorer offers."""
        words = ["hetsim", "compare", self.file_name()]
        for override in self.overrides:
            words += ["--set", override]
        if self.target is not None:
            words += ["--set", f"training.target_loss={self.target!r}"]
        if self.algorithms != ALL_ALGORITHMS:
            for label in self.algorithms:
                words += ["-a", label]
        words += ["--seed", str(self.seed)] if self.seed else []
        if quick:
            words += ["--quick"] if self.tuned else ["--quick", "--fixed"]
        return shlex.join(words)

    def snippet(self) -> str:
        """Python that gives the quick picture."""
        source = json.dumps(self.file_name())
        stated = [] if self.target is None else [f"training.target_loss={self.target!r}"]
        overrides = [*self.overrides, *stated]
        profile = (
            f"load_profile({source}, overrides={json.dumps(overrides)})" if overrides else f"load_profile({source})"
        )
        return (
            "from hetsim import load_profile\nfrom hetsim.quick import quick\n\n"
            f"profile = {profile}\n"
            f"c = quick(profile, {json.dumps(list(self.algorithms))}, seed={self.seed}, tuned={self.tuned})\n"
            "print(c.sentence())"
        )


ALL_ALGORITHMS = (*DEFAULT_ALGORITHMS, ABLATION, LITERAL_READING)  # what `hetsim compare` takes where nothing is said


@lru_cache(maxsize=128)
def _loaded(source: str, overrides: tuple[str, ...]) -> Profile:
    return load_profile(source, trusted=False, overrides=overrides, name=FILE)


def _check_source(source: str) -> None:
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise UsageError("the profile is not text that can be written as UTF-8") from None
    if size > MAX_TEXT_BYTES:
        raise UsageError(f"the profile is larger than {MAX_TEXT_BYTES // 1000:,} kB (a profile is a few kB)")
    if "\n" not in source and source not in shipped_paths():
        raise UsageError(f"no shipped profile {_short(source)} ({nearest(source[:100], shipped_paths())})")


def _check_overrides(overrides: tuple[str, ...]) -> None:
    if len(overrides) > MAX_OVERRIDES:
        raise UsageError(f"{len(overrides)} overrides; the explorer takes up to {MAX_OVERRIDES}")
    for override in overrides:
        if len(override) > MAX_OVERRIDE:
            raise UsageError(f"an override of {len(override):,} characters; up to {MAX_OVERRIDE:,}")
        if not override.isprintable() or "=" not in override:
            raise UsageError(f"override {_short(override)} must read path.to.key=value, on one line")


def _packed(text: str) -> str:
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")
    if len(packed) > MAX_LINK:
        raise UsageError(
            f"the profile is too large for a link ({len(packed):,} characters; up to {MAX_LINK:,}): send the file"
        )
    return packed


def _unpacked(packed: str) -> str:
    damaged = UsageError("the link's profile is damaged; was the link cut?")
    if len(packed) > MAX_LINK:
        raise UsageError(f"the link's profile has {len(packed):,} characters; up to {MAX_LINK:,}")
    if not re.fullmatch(r"[A-Za-z0-9_-]*", packed):
        raise damaged
    try:
        data = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, MAX_TEXT_BYTES + 1)  # a small link may unpack to gigabytes
        if len(text) <= MAX_TEXT_BYTES and not unpacker.eof:
            raise damaged
        decoded = text.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        raise damaged from None
    if "\n" not in decoded:
        raise damaged
    return decoded


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise UsageError(f"the link's seed is {_short(text)}; a whole number from 0 to {MAX_SEED:,}")
    return int(text)


def _target(text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"the link's target is {_short(text)}; a loss above 0")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
