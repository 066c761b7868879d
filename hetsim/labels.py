"""Labels of a comparison: `name` or `name:option=value,option=value`, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetsim.algorithms import Algorithm, get, make, registry
from hetsim.errors import UsageError, nearest

LITERAL_READING = "abs-sgd:compute_point=current"  # the literal reading of the paper's abstract
ALL = "all"  # as a label: every registered algorithm
ABLATION = "one-step-delay-balanced:compute_point=current"  # ABS-SGD without its open batch, at the same point


@dataclass(frozen=True)
class Contender:
    """One line of a comparison: a registered algorithm with the options its label states."""

    label: str
    name: str
    options: Mapping[str, Any]

    def algorithm(self, profile_options: Mapping[str, Mapping[str, Any]]) -> Algorithm:
        """The algorithm, the label's options over the profile's. Raises UsageError where together they are wrong."""
        return make(self.name, {**profile_options.get(self.name, {}), **self.options})


def parse(text: str) -> Contender:
    """A label as typed, normalised: no blanks, values as the algorithm understands them.

    >>> parse("abs-sgd: compute_point = current, max_local_batch=064").label
    'abs-sgd:compute_point=current,max_local_batch=64'
    """
    name, _, rest = (part.strip() for part in text.partition(":"))
    known = get(name).Options.model_fields
    stated: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        option, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            raise UsageError(f"{text!r}: {item!r} is not option=value")
        if option not in known:
            raise UsageError(f"{text!r}: {option}: unknown option of {name} ({nearest(option, known)})")
        if option in stated:
            raise UsageError(f"{text!r}: {option} is given twice")
        stated[option] = value
    understood = _understood(text, name, stated)
    return Contender(label_of(name, understood), name, understood)


def _understood(text: str, name: str, stated: Mapping[str, str]) -> dict[str, Any]:
    """Each value as its option reads it; whether they fit together is seen only with the profile's options (`Contender.algorithm`)."""
    if not stated:
        return {}
    try:
        options = make(name, stated).options
    except UsageError as error:
        raise UsageError(f"{text!r}: {error}") from None
    return {option: getattr(options, option) for option in stated}


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """The label that states these options.

    >>> label_of("s-sgd", {"overlap": False})
    's-sgd:overlap=false'
    """
    if not options:
        return name
    stated = (f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items())
    return f"{name}:{','.join(stated)}"


def expanded(labels: Sequence[str]) -> list[str]:
    """Labels with `all` replaced by every registered name that is not a label beside it."""
    given = {text.strip() for text in labels}
    every = [name for name in registry() if name not in given]
    return [label for text in labels for label in (every if text.strip() == ALL else [text])]


def contenders(labels: Sequence[str] | None) -> list[Contender]:
    """The lines of a comparison. None: the algorithms compared by default, and the two delayed methods that matter most at the plain
    compute point. The label `all` stands for every registered algorithm that is not named beside it.

    Raises UsageError for an unknown algorithm or option, and for a label given twice.
    """
    if labels is None:
        labels = [*(name for name, kind in registry().items() if kind.by_default), ABLATION, LITERAL_READING]
    chosen = [parse(text) for text in expanded(labels)]
    if not chosen:
        raise UsageError("nothing to compare: name at least one algorithm")
    seen: set[str] = set()
    for contender in chosen:
        if contender.label in seen:
            raise UsageError(f"{contender.label} is given twice; labels must differ")
        seen.add(contender.label)
    return chosen
