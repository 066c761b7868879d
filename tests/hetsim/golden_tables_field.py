"""Logs of two workers, a row a line, worked out by hand, of the algorithms that are not compared by default: see golden_tables."""

from __future__ import annotations

from typing import Any

from golden_tables import TABLES

SSP = next(table for name, _, _, table in TABLES if name == "ssp")

FIELD: list[tuple[str, dict[str, Any], int, str]] = [
    (
        # a computes 2 samples in 2 s; b is at its limit of 2 s after one of its two and stops: 3 samples in 2 + 2 s instead of 4 in 4 + 2 s
        "dropcompute",
        {"limit": "fixed", "limit_s": 2.0},
        2,
        """
        GRAD    0    0    1    0    .    .    0    1    0    1    0
        GRAD    1    0    2    0    .    .    1    1    1    1    0
        JOIN    1    2    2    .    .    0    1    1    0    1    0
        GRAD    0    1    2    0    .    .    0    1    2    1    0
        JOIN    0    2    2    .    .    0    0    2    0    1    0
        REDUCE  *    2    4    .    .    0    .    3    0    1    0
        WAIT    0    2    4    .    .    0    .    0    0    1    0
        WAIT    1    2    4    .    .    0    .    0    0    1    0
        STEP    0    4    4    1    0    0    .    3    3    1    0
        GRAD    0    4    5    1    .    .    2    1    3    1    0
        GRAD    1    4    6    1    .    .    3    1    4    1    0
        JOIN    1    6    6    .    .    1    3    1    0    1    0
        GRAD    0    5    6    1    .    .    2    1    5    1    0
        JOIN    0    6    6    .    .    1    2    2    0    1    0
        REDUCE  *    6    8    .    .    1    .    3    0    1    0
        WAIT    0    6    8    .    .    1    .    0    0    1    0
        WAIT    1    6    8    .    .    1    .    0    0    1    0
        STEP    0    8    8    2    1    1    .    3    3    1    0
        """,
    ),
    (
        # asgd's times; only gradients at the current parameters count:
        # b's, pushed 1 s after each of a's, are always one update old and dropped (STALE, code 1)
        "ringmaster-asgd",
        {"threshold": 1},
        2,
        """
        REDUCE  0    0    2    .    .    0    .    0    0    1    1
        WAIT    0    0    2    .    .    0    .    0    0    1    2
        COPY    0    2    2    0    .    0    .    0    0    1    0
        REDUCE  1    0    2    .    .    1    .    0    0    1    1
        WAIT    1    0    2    .    .    1    .    0    0    1    2
        COPY    1    2    2    0    .    1    .    0    0    1    0
        GRAD    0    2    4    0    .    .    0    2    0    1    0
        JOIN    0    4    4    .    .    2    0    2    0    1    0
        REDUCE  0    4    6    .    .    2    .    2    0    1    0
        WAIT    0    4    6    .    .    2    .    0    0    1    1
        GRAD    1    2    6    0    .    .    1    2    2    1    0
        JOIN    1    6    6    .    .    4    1    2    0    1    0
        STEP    2    6    6    1    0    2    .    2    2    1    0
        REDUCE  1    6    7    .    .    4    .    2    0    1    0
        WAIT    1    6    7    .    .    4    .    0    0    1    1
        DISCARD 2    7    7    .    .    4    .    2    0    1    1
        REDUCE  0    6    8    .    .    3    .    0    0    1    1
        WAIT    0    6    8    .    .    3    .    0    0    1    2
        COPY    0    8    8    1    .    3    .    0    0    1    0
        REDUCE  1    7  8.5    .    .    5    .    0    0    1    1
        WAIT    1    7  8.5    .    .    5    .    0    0    1    2
        COPY    1  8.5  8.5    1    .    5    .    0    0    1    0
        GRAD    0    8   10    1    .    .    2    2    4    1    0
        JOIN    0   10   10    .    .    6    2    2    0    1    0
        REDUCE  0   10   12    .    .    6    .    2    0    1    0
        WAIT    0   10   12    .    .    6    .    0    0    1    1
        STEP    2   12   12    2    1    6    .    2    2    1    0
        GRAD    1  8.5 12.5    1    .    .    3    2    6    1    0
        JOIN    1 12.5 12.5    .    .    8    3    2    0    1    0
        REDUCE  1 12.5 13.5    .    .    8    .    2    0    1    0
        WAIT    1 12.5 13.5    .    .    8    .    0    0    1    1
        DISCARD 2 13.5 13.5    .    .    8    .    2    0    1    1
        REDUCE  0   12   14    .    .    7    .    0    0    1    1
        WAIT    0   12   14    .    .    7    .    0    0    1    2
        COPY    0   14   14    2    .    7    .    0    0    1    0
        REDUCE  1 13.5 14.75    .    .    9    .    0    0    1    1
        WAIT    1 13.5 14.75    .    .    9    .    0    0    1    2
        COPY    1 14.75 14.75    2    .    9    .    0    0    1    0
        """,
    ),
    (
        # times 2 and 4 s, mean 3: wanted 2 + 1·1 and 2 - .5·1, scaled to a sum of 4: 2.67 and 1.33, rounded 3 and 1:
        # lb-bsp's batches and times
        "omnilearn",
        {"overlap": False},
        2,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        JOIN    0    2    2    .    .    0    0    2    0    1    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        JOIN    1    4    4    .    .    0    1    2    0    1    0
        REDUCE  *    4    6    .    .    0    .    4    0    1    0
        WAIT    0    2    6    .    .    0    .    0    0    1    0
        WAIT    1    4    6    .    .    0    .    0    0    1    0
        STEP    0    6    6    1    0    0    .    4    4    1    0
        GRAD    1    6    8    1    .    .    2    1    7    1    0
        JOIN    1    8    8    .    .    1    2    1    0    1    0
        GRAD    0    6    9    1    .    .    3    3    4    1    0
        JOIN    0    9    9    .    .    1    3    3    0    1    0
        REDUCE  *    9   11    .    .    1    .    4    0    1    0
        WAIT    0    9   11    .    .    1    .    0    0    1    0
        WAIT    1    8   11    .    .    1    .    0    0    1    0
        STEP    0   11   11    2    1    1    .    4    4    1    0
        """,
    ),
    (
        # no delay exceeds two workers: asgd's log
        "delay-adaptive-asgd",
        {},
        3,
        """
        REDUCE  0    0    2    .    .    0    .    0    0    1    1
        WAIT    0    0    2    .    .    0    .    0    0    1    2
        COPY    0    2    2    0    .    0    .    0    0    1    0
        REDUCE  1    0    2    .    .    1    .    0    0    1    1
        WAIT    1    0    2    .    .    1    .    0    0    1    2
        COPY    1    2    2    0    .    1    .    0    0    1    0
        GRAD    0    2    4    0    .    .    0    2    0    1    0
        JOIN    0    4    4    .    .    2    0    2    0    1    0
        REDUCE  0    4    6    .    .    2    .    2    0    1    0
        WAIT    0    4    6    .    .    2    .    0    0    1    1
        GRAD    1    2    6    0    .    .    1    2    2    1    0
        JOIN    1    6    6    .    .    4    1    2    0    1    0
        STEP    2    6    6    1    0    2    .    2    2    1    0
        REDUCE  1    6    7    .    .    4    .    2    0    1    0
        WAIT    1    6    7    .    .    4    .    0    0    1    1
        STEP    2    7    7    2    1    4    .    2    2    1    0
        REDUCE  0    6    8    .    .    3    .    0    0    1    1
        WAIT    0    6    8    .    .    3    .    0    0    1    2
        COPY    0    8    8    1    .    3    .    0    0    1    0
        REDUCE  1    7  8.5    .    .    5    .    0    0    1    1
        WAIT    1    7  8.5    .    .    5    .    0    0    1    2
        COPY    1  8.5  8.5    2    .    5    .    0    0    1    0
        GRAD    0    8   10    1    .    .    2    2    4    1    0
        JOIN    0   10   10    .    .    6    2    2    0    1    0
        REDUCE  0   10   12    .    .    6    .    2    0    1    0
        WAIT    0   10   12    .    .    6    .    0    0    1    1
        STEP    2   12   12    3    2    6    .    2    2    1    0
        GRAD    1  8.5 12.5    2    .    .    3    2    6    1    0
        JOIN    1 12.5 12.5    .    .    8    3    2    0    1    0
        REDUCE  1 12.5 13.5    .    .    8    .    2    0    1    0
        WAIT    1 12.5 13.5    .    .    8    .    0    0    1    1
        STEP    2 13.5 13.5    4    3    8    .    2    2    1    0
        REDUCE  0   12   14    .    .    7    .    0    0    1    1
        WAIT    0   12   14    .    .    7    .    0    0    1    2
        COPY    0   14   14    3    .    7    .    0    0    1    0
        REDUCE  1 13.5 14.75    .    .    9    .    0    0    1    1
        WAIT    1 13.5 14.75    .    .    9    .    0    0    1    2
        COPY    1 14.75 14.75    4    .    9    .    0    0    1    0
        """,
    ),
    (
        # a's batch takes 2 s, the all-reduce 2 s: at 4 b is late for the first, drops its gradient, finds update 1 made and goes on
        # from there, late again at 8; 2 samples every 4 s
        "backup-workers",
        {},
        2,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        JOIN    0    2    2    .    .    0    0    2    0    1    0
        REDUCE  *    2    4    .    .    0    .    2    0    1    0
        WAIT    0    2    4    .    .    0    .    0    0    1    0
        STEP    0    4    4    1    0    0    .    2    2    1    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        DISCARD 1    4    4    .    .    .    1    2    0    1    0
        GRAD    0    4    6    1    .    .    2    2    4    1    0
        JOIN    0    6    6    .    .    1    2    2    0    1    0
        REDUCE  *    6    8    .    .    1    .    2    0    1    0
        WAIT    0    6    8    .    .    1    .    0    0    1    0
        STEP    0    8    8    2    1    1    .    2    2    1    0
        GRAD    1    4    8    1    .    .    3    2    6    1    0
        DISCARD 1    8    8    .    .    .    3    2    0    1    0
        """,
    ),
    (
        # a starts every all-reduce: 2-4, 6-8, 10-12. b's gradient of x_0, done at 4, waits until a comes at 6 (JOIN code 1: taken), that of
        # x_1 from 8 to 10; every sum over the planned 4 samples, the first over 2 of them
        "eager-sgd",
        {"mode": "solo"},
        3,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        JOIN    0    2    2    .    .    0    0    2    0    1    0
        REDUCE  *    2    4    .    .    0    .    2    0    1    0
        WAIT    0    2    4    .    .    0    .    0    0    1    0
        STEP    0    4    4    1    0    0    .    2    4    1    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        GRAD    0    4    6    1    .    .    2    2    4    1    0
        JOIN    0    6    6    .    .    1    2    2    0    1    0
        JOIN    1    6    6    .    .    1    1    2    0    1    1
        REDUCE  *    6    8    .    .    1    .    4    0    1    0
        WAIT    0    6    8    .    .    1    .    0    0    1    0
        STEP    0    8    8    2    1    1    .    4    4    1    0
        GRAD    1    4    8    1    .    .    3    2    6    1    0
        GRAD    0    8   10    2    .    .    4    2    8    1    0
        JOIN    0   10   10    .    .    2    4    2    0    1    0
        JOIN    1   10   10    .    .    2    3    2    0    1    1
        REDUCE  *   10   12    .    .    2    .    4    0    1    0
        WAIT    0   10   12    .    .    2    .    0    0    1    0
        STEP    0   12   12    3    2    2    .    4    4    1    0
        GRAD    1    8   12    2    .    .    5    2   10    1    0
        DISCARD 1   12   12    .    .    .    5    2    0    1    3
        """,
    ),
    (
        # two gradients of 2 samples are wanted: at 4 b has the second (a's first is taken, JOIN code 1). a's second pass, done at 4 too,
        # is of no use any more (STALE); at 6 both go on at x_1, where the same happens again until 12
        "rennala-sgd",
        {},
        2,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        JOIN    1    4    4    .    .    0    1    2    0    1    0
        JOIN    0    4    4    .    .    0    0    2    0    1    1
        GRAD    0    2    4    0    .    .    2    2    4    1    0
        DISCARD 0    4    4    .    .    .    2    2    0    1    1
        REDUCE  *    4    6    .    .    0    .    4    0    1    0
        WAIT    0    4    6    .    .    0    .    0    0    1    0
        WAIT    1    4    6    .    .    0    .    0    0    1    0
        STEP    0    6    6    1    0    0    .    4    4    1    0
        GRAD    0    6    8    1    .    .    3    2    6    1    0
        GRAD    1    6   10    1    .    .    4    2    8    1    0
        JOIN    1   10   10    .    .    1    4    2    0    1    0
        JOIN    0   10   10    .    .    1    3    2    0    1    1
        GRAD    0    8   10    1    .    .    5    2   10    1    0
        DISCARD 0   10   10    .    .    .    5    2    0    1    1
        REDUCE  *   10   12    .    .    1    .    4    0    1    0
        WAIT    0   10   12    .    .    1    .    0    0    1    0
        WAIT    1   10   12    .    .    1    .    0    0    1    0
        STEP    0   12   12    2    1    1    .    4    4    1    0
        """,
    ),
    (
        # one-step delay's times; every launch takes a local step from what the worker holds (code 4), and the next gradient is taken there
        "od-sgd",
        {},
        2,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        JOIN    0    2    2    .    .    0    0    2    0    1    0
        PREDICT 0    2    2    1    0    0    0    2    0    1    4
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        JOIN    1    4    4    .    .    0    1    2    0    1    0
        PREDICT 1    4    4    2    0    0    1    2    0    1    4
        GRAD    0    2    4    1    .    .    2    2    4    1    0
        REDUCE  *    4    6    .    .    0    .    4    0    1    0
        WAIT    0    4    6    .    .    0    .    0    0    1    0
        STEP    0    6    6    3    0    0    .    4    4    1    0
        JOIN    0    6    6    .    .    1    2    2    0    1    0
        PREDICT 0    6    6    4    3    1    2    2    0    1    4
        GRAD    1    4    8    2    .    .    3    2    6    1    0
        JOIN    1    8    8    .    .    1    3    2    0    1    0
        PREDICT 1    8    8    5    3    1    3    2    0    1    4
        GRAD    0    6    8    4    .    .    4    2    8    1    0
        REDUCE  *    8   10    .    .    1    .    4    0    1    0
        WAIT    0    8   10    .    .    1    .    0    0    1    0
        STEP    0   10   10    6    3    1    .    4    4    1    0
        DISCARD 0   10   10    .    .    .    4    2    0    1    3
        GRAD    1    8   12    5    .    .    5    2   10    1    0
        DISCARD 1   12   12    .    .    .    5    2    0    1    3
        """,
    ),
    (
        # asgd's log with λ = .04 in the place of the factor on the learning rate and code 1
        "dc-asgd",
        {"variant": "constant"},
        3,
        """
        REDUCE  0    0    2    .    .    0    .    0    0    1    1
        WAIT    0    0    2    .    .    0    .    0    0    1    2
        COPY    0    2    2    0    .    0    .    0    0    1    0
        REDUCE  1    0    2    .    .    1    .    0    0    1    1
        WAIT    1    0    2    .    .    1    .    0    0    1    2
        COPY    1    2    2    0    .    1    .    0    0    1    0
        GRAD    0    2    4    0    .    .    0    2    0    1    0
        JOIN    0    4    4    .    .    2    0    2    0    1    0
        REDUCE  0    4    6    .    .    2    .    2    0    1    0
        WAIT    0    4    6    .    .    2    .    0    0    1    1
        GRAD    1    2    6    0    .    .    1    2    2    1    0
        JOIN    1    6    6    .    .    4    1    2    0    1    0
        STEP    2    6    6    1    0    2    .    2    2 0.04    1
        REDUCE  1    6    7    .    .    4    .    2    0    1    0
        WAIT    1    6    7    .    .    4    .    0    0    1    1
        STEP    2    7    7    2    1    4    .    2    2 0.04    1
        REDUCE  0    6    8    .    .    3    .    0    0    1    1
        WAIT    0    6    8    .    .    3    .    0    0    1    2
        COPY    0    8    8    1    .    3    .    0    0    1    0
        REDUCE  1    7  8.5    .    .    5    .    0    0    1    1
        WAIT    1    7  8.5    .    .    5    .    0    0    1    2
        COPY    1  8.5  8.5    2    .    5    .    0    0    1    0
        GRAD    0    8   10    1    .    .    2    2    4    1    0
        JOIN    0   10   10    .    .    6    2    2    0    1    0
        REDUCE  0   10   12    .    .    6    .    2    0    1    0
        WAIT    0   10   12    .    .    6    .    0    0    1    1
        STEP    2   12   12    3    2    6    .    2    2 0.04    1
        GRAD    1  8.5 12.5    2    .    .    3    2    6    1    0
        JOIN    1 12.5 12.5    .    .    8    3    2    0    1    0
        REDUCE  1 12.5 13.5    .    .    8    .    2    0    1    0
        WAIT    1 12.5 13.5    .    .    8    .    0    0    1    1
        STEP    2 13.5 13.5    4    3    8    .    2    2 0.04    1
        REDUCE  0   12   14    .    .    7    .    0    0    1    1
        WAIT    0   12   14    .    .    7    .    0    0    1    2
        COPY    0   14   14    3    .    7    .    0    0    1    0
        REDUCE  1 13.5 14.75    .    .    9    .    0    0    1    1
        WAIT    1 13.5 14.75    .    .    9    .    0    0    1    2
        COPY    1 14.75 14.75    4    .    9    .    0    0    1    0
        """,
    ),
    (
        # s_L = 0: a, a clock ahead at 6, has pushed but once: nothing is predicted, and it waits at the gate (code 3) for b's push at 7. At
        # 13 b has pushed but once; from then on a's last interval has the wait in it and is as long as b's, so no clock more would
        # bring it nearer to a push of b, and none is granted: the log is SSP's
        "dssp",
        {"staleness": 0, "extra": 2},
        4,
        SSP,
    ),
]
