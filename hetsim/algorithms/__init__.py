"""The algorithms, one file each, named as in their papers.

    s-sgd                    synchronous, equal batches (PyTorch DDP)
    lb-bsp                   synchronous, batches balanced to measured speeds
    one-step-delay           next batch while the last one's gradients travel
    one-step-delay-balanced  the same with balanced batches: ABS-SGD without its open batch
    local-sgd                H steps alone, then average
    asgd                     parameter server, every gradient at once
    ssp                      parameter server, bounded skew
    abs-sgd                  delayed synchronous, open batch
    dropcompute              synchronous with a time limit on computation
    backup-workers           synchronous, the last k gradients are dropped
    od-sgd                   one-step delay with a local update for the next gradient's point
    dc-asgd                  asynchronous, late gradients corrected to first order
    ringmaster-asgd          asynchronous, gradients that are too old are ignored
    eager-sgd                partial all-reduces, late gradients come with the next
    ad-psgd                  gossip: averages of pairs while they compute
    streaming-diloco         local training, fragments averaged in the background
    omnilearn                synchronous, batches moved by a proportional controller
    rennala-sgd              synchronous, the first S gradients whoever sends them
    dc-s3gd                  local steps averaged a step late, gradients corrected to first order
    dasgd                    local SGD, averages merged some steps late
    dssp                     parameter server, bounded skew whose bound is chosen at run time
    delay-adaptive-asgd      asynchronous, smaller steps for older gradients
    prague                   partial all-reduces of random groups average parameters

A comparison that names none runs those up to abs-sgd; the others are run by name (or all with `-a all`): they have `by_default = False`.

To add one, write one file in this folder with a class like this and import it below; docs/add-an-algorithm.md walks through it:

    class Mine(Algorithm, name="mine"):
        \"\"\"One line that says what it is.\"\"\"

        source = "where it is described"

        def worker(self, w):
            while True:
                yield w.compute(w.batch)
                sync = yield w.all_reduce()
                reduced = yield w.wait(sync)
                yield w.apply(sync)
                if reduced.stop:
                    return
"""

from __future__ import annotations

from hetsim.algorithms.base import Algorithm, Options, get, make, option_problems, registry

# Importing registers; the order is the order of every list.
# isort: off
from hetsim.algorithms import s_sgd  # noqa: F401
from hetsim.algorithms import lb_bsp  # noqa: F401
from hetsim.algorithms import one_step_delay  # noqa: F401
from hetsim.algorithms import one_step_delay_balanced  # noqa: F401
from hetsim.algorithms import local_sgd  # noqa: F401
from hetsim.algorithms import asgd  # noqa: F401
from hetsim.algorithms import ssp  # noqa: F401
from hetsim.algorithms import abs_sgd  # noqa: F401
from hetsim.algorithms import dropcompute  # noqa: F401
from hetsim.algorithms import backup_workers  # noqa: F401
from hetsim.algorithms import od_sgd  # noqa: F401
from hetsim.algorithms import dc_asgd  # noqa: F401
from hetsim.algorithms import ringmaster_asgd  # noqa: F401
from hetsim.algorithms import eager_sgd  # noqa: F401
from hetsim.algorithms import ad_psgd  # noqa: F401
from hetsim.algorithms import streaming_diloco  # noqa: F401
from hetsim.algorithms import omnilearn  # noqa: F401
from hetsim.algorithms import rennala_sgd  # noqa: F401
from hetsim.algorithms import dc_s3gd  # noqa: F401
from hetsim.algorithms import dasgd  # noqa: F401
from hetsim.algorithms import dssp  # noqa: F401
from hetsim.algorithms import delay_adaptive_asgd  # noqa: F401
from hetsim.algorithms import prague  # noqa: F401
# isort: on

__all__ = ["Algorithm", "Options", "get", "make", "option_problems", "registry"]
