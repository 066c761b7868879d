"""Logs of two workers, a row a line, worked out by hand: see test_golden for the cluster."""

from __future__ import annotations

from typing import Any

# kind, worker (* is a collective, 2 the server), start, end, state, parent, source, slot, samples, first, scale, code
TABLES: list[tuple[str, dict[str, Any], int, str]] = [
    (
        # a computes 2 samples in 2 s, b in 4 s; C = 2(n-1)M/(n·bw_min) = 2·4/(2·2) = 2 s: period 4 + 2, a waits 4 of 6
        "s-sgd",
        {"overlap": False},
        2,
        """
        GRAD    0     0    2    0    .    .    0    2    0  1 0
        JOIN    0     2    2    .    .    0    0    2    0  1 0
        GRAD    1     0    4    0    .    .    1    2    2  1 0
        JOIN    1     4    4    .    .    0    1    2    0  1 0
        REDUCE  *     4    6    .    .    0    .    4    0  1 0
        WAIT    0     2    6    .    .    0    .    0    0  1 0
        WAIT    1     4    6    .    .    0    .    0    0  1 0
        STEP    0     6    6    1    0    0    .    4    4  1 0
        GRAD    0     6    8    1    .    .    2    2    4  1 0
        JOIN    0     8    8    .    .    1    2    2    0  1 0
        GRAD    1     6   10    1    .    .    3    2    6  1 0
        JOIN    1    10   10    .    .    1    3    2    0  1 0
        REDUCE  *    10   12    .    .    1    .    4    0  1 0
        WAIT    0     8   12    .    .    1    .    0    0  1 0
        WAIT    1    10   12    .    .    1    .    0    0  1 0
        STEP    0    12   12    2    1    1    .    4    4  1 0
        """,
    ),
    (
        # after one update the speeds 1 and .5 are known: batches 3 and 1 take 3 s and 2 s, period 3 + 2 (2 and 2: 4 + 2)
        "lb-bsp",
        {"overlap": False},
        3,
        """
        GRAD    0     0    2    0    .    .    0    2    0  1 0
        JOIN    0     2    2    .    .    0    0    2    0  1 0
        GRAD    1     0    4    0    .    .    1    2    2  1 0
        JOIN    1     4    4    .    .    0    1    2    0  1 0
        REDUCE  *     4    6    .    .    0    .    4    0  1 0
        WAIT    0     2    6    .    .    0    .    0    0  1 0
        WAIT    1     4    6    .    .    0    .    0    0  1 0
        STEP    0     6    6    1    0    0    .    4    4  1 0
        GRAD    1     6    8    1    .    .    2    1    7  1 0
        JOIN    1     8    8    .    .    1    2    1    0  1 0
        GRAD    0     6    9    1    .    .    3    3    4  1 0
        JOIN    0     9    9    .    .    1    3    3    0  1 0
        REDUCE  *     9   11    .    .    1    .    4    0  1 0
        WAIT    0     9   11    .    .    1    .    0    0  1 0
        WAIT    1     8   11    .    .    1    .    0    0  1 0
        STEP    0    11   11    2    1    1    .    4    4  1 0
        GRAD    1    11   13    2    .    .    4    1   11  1 0
        JOIN    1    13   13    .    .    2    4    1    0  1 0
        GRAD    0    11   14    2    .    .    5    3    8  1 0
        JOIN    0    14   14    .    .    2    5    3    0  1 0
        REDUCE  *    14   16    .    .    2    .    4    0  1 0
        WAIT    0    14   16    .    .    2    .    0    0  1 0
        WAIT    1    13   16    .    .    2    .    0    0  1 0
        STEP    0    16   16    3    2    2    .    4    4  1 0
        """,
    ),
    (
        # b never waits: period max(4, 2) = 4. a waits for each all-reduce, which starts when b's batch ends.
        # What both still compute when the last update is known to be the last is dropped
        "one-step-delay",
        {"compute_point": "current"},
        3,
        """
        GRAD    0     0    2    0    .    .    0    2    0  1 0
        JOIN    0     2    2    .    .    0    0    2    0  1 0
        GRAD    1     0    4    0    .    .    1    2    2  1 0
        JOIN    1     4    4    .    .    0    1    2    0  1 0
        GRAD    0     2    4    0    .    .    2    2    4  1 0
        REDUCE  *     4    6    .    .    0    .    4    0  1 0
        WAIT    0     4    6    .    .    0    .    0    0  1 0
        STEP    0     6    6    1    0    0    .    4    4  1 0
        JOIN    0     6    6    .    .    1    2    2    0  1 0
        GRAD    1     4    8    0    .    .    3    2    6  1 0
        JOIN    1     8    8    .    .    1    3    2    0  1 0
        GRAD    0     6    8    1    .    .    4    2    8  1 0
        REDUCE  *     8   10    .    .    1    .    4    0  1 0
        WAIT    0     8   10    .    .    1    .    0    0  1 0
        STEP    0    10   10    2    1    1    .    4    4  1 0
        JOIN    0    10   10    .    .    2    4    2    0  1 0
        GRAD    1     8   12    1    .    .    5    2   10  1 0
        JOIN    1    12   12    .    .    2    5    2    0  1 0
        GRAD    0    10   12    2    .    .    6    2   12  1 0
        REDUCE  *    12   14    .    .    2    .    4    0  1 0
        WAIT    0    12   14    .    .    2    .    0    0  1 0
        STEP    0    14   14    3    2    2    .    4    4  1 0
        DISCARD 0    14   14    .    .    .    6    2    0  1 3
        GRAD    1    12   16    2    .    .    7    2   14  1 0
        DISCARD 1    16   16    .    .    .    7    2    0  1 3
        """,
    ),
    (
        # the same times; every launch predicts a point of its own, and the next gradient is taken there
        "one-step-delay",
        {"compute_point": "local-prediction"},
        2,
        """
        GRAD    0     0    2    0    .    .    0    2    0  1 0
        JOIN    0     2    2    .    .    0    0    2    0  1 0
        PREDICT 0     2    2    1    0    0    0    2    0  1 2
        GRAD    1     0    4    0    .    .    1    2    2  1 0
        JOIN    1     4    4    .    .    0    1    2    0  1 0
        PREDICT 1     4    4    2    0    0    1    2    0  1 2
        GRAD    0     2    4    1    .    .    2    2    4  1 0
        REDUCE  *     4    6    .    .    0    .    4    0  1 0
        WAIT    0     4    6    .    .    0    .    0    0  1 0
        STEP    0     6    6    3    0    0    .    4    4  1 0
        JOIN    0     6    6    .    .    1    2    2    0  1 0
        PREDICT 0     6    6    4    3    1    2    2    0  1 2
        GRAD    1     4    8    2    .    .    3    2    6  1 0
        JOIN    1     8    8    .    .    1    3    2    0  1 0
        PREDICT 1     8    8    5    3    1    3    2    0  1 2
        GRAD    0     6    8    4    .    .    4    2    8  1 0
        REDUCE  *     8   10    .    .    1    .    4    0  1 0
        WAIT    0     8   10    .    .    1    .    0    0  1 0
        STEP    0    10   10    6    3    1    .    4    4  1 0
        DISCARD 0    10   10    .    .    .    4    2    0  1 3
        GRAD    1     8   12    5    .    .    5    2   10  1 0
        DISCARD 1    12   12    .    .    .    5    2    0  1 3
        """,
    ),
    (
        # batches 3 and 1 from the first update on; b, which computed its second batch of 2 until 8, changes after it
        "one-step-delay-balanced",
        {},
        3,
        """
        GRAD    0     0    2    0    .    .    0    2    0  1 0
        JOIN    0     2    2    .    .    0    0    2    0  1 0
        PREDICT 0     2    2    1    0    0    0    2    0  0.5 5
        GRAD    1     0    4    0    .    .    1    2    2  1 0
        JOIN    1     4    4    .    .    0    1    2    0  1 0
        PREDICT 1     4    4    2    0    0    1    2    0  0.5 5
        GRAD    0     2    4    1    .    .    2    2    4  1 0
        REDUCE  *     4    6    .    .    0    .    4    0  1 0
        WAIT    0     4    6    .    .    0    .    0    0  1 0
        STEP    0     6    6    3    0    0    .    4    4  1 0
        JOIN    0     6    6    .    .    1    2    2    0  1 0
        PREDICT 0     6    6    4    3    1    2    2    0  0.5 5
        GRAD    1     4    8    2    .    .    3    2    6  1 0
        JOIN    1     8    8    .    .    1    3    2    0  1 0
        PREDICT 1     8    8    5    3    1    3    2    0  0.5 5
        GRAD    0     6    9    4    .    .    4    3    8  1 0
        REDUCE  *     8   10    .    .    1    .    4    0  1 0
        WAIT    0     9   10    .    .    1    .    0    0  1 0
        STEP    0    10   10    6    3    1    .    4    4  1 0
        JOIN    0    10   10    .    .    2    4    3    0  1 0
        PREDICT 0    10   10    7    6    2    4    3    0  0.5 5
        GRAD    1     8   10    5    .    .    5    1   11  1 0
        JOIN    1    10   10    .    .    2    5    1    0  1 0
        PREDICT 1    10   10    8    6    2    5    1    0  0.5 5
        REDUCE  *    10   12    .    .    2    .    4    0  1 0
        GRAD    1    10   12    8    .    .    6    1   15  1 0
        STEP    1    12   12    9    6    2    .    4    4  1 0
        DISCARD 1    12   12    .    .    .    6    1    0  1 3
        GRAD    0    10   13    7    .    .    7    3   12  1 0
        DISCARD 0    13   13    .    .    .    7    3    0  1 3
        """,
    ),
    (
        # two steps of 2 samples each: 4 s and 8 s, then the average takes 2 s; shares by samples, 4 and 4
        "local-sgd",
        {"local_steps": 2},
        2,
        """
        GRAD    0     0    2    0    .    .    0    2    0  1 0
        STEP    0     2    2    1    0    .    0    2    2  1 0
        GRAD    1     0    4    0    .    .    1    2    2  1 0
        STEP    1     4    4    2    0    .    1    2    2  1 0
        GRAD    0     2    4    1    .    .    2    2    4  1 0
        STEP    0     4    4    3    1    .    2    2    2  1 0
        JOIN    0     4    4    3    .    0    .    0    0  4 0
        GRAD    1     4    8    2    .    .    3    2    6  1 0
        STEP    1     8    8    4    2    .    3    2    2  1 0
        JOIN    1     8    8    4    .    0    .    0    0  4 0
        REDUCE  *     8   10    .    .    0    .    0    0  1 1
        WAIT    0     4   10    .    .    0    .    0    0  1 0
        WAIT    1     8   10    .    .    0    .    0    0  1 0
        MIX     0    10   10    5    3    0    .    0    0  1 0
        MIX     1    10   10    6    4    0    .    0    0  1 0
        GRAD    0    10   12    5    .    .    4    2    8  1 0
        STEP    0    12   12    7    5    .    4    2    2  1 0
        GRAD    1    10   14    6    .    .    5    2   10  1 0
        STEP    1    14   14    8    6    .    5    2    2  1 0
        GRAD    0    12   14    7    .    .    6    2   12  1 0
        STEP    0    14   14    9    7    .    6    2    2  1 0
        JOIN    0    14   14    9    .    1    .    0    0  4 0
        GRAD    1    14   18    8    .    .    7    2   14  1 0
        STEP    1    18   18   10    8    .    7    2    2  1 0
        JOIN    1    18   18   10    .    1    .    0    0  4 0
        REDUCE  *    18   20    .    .    1    .    0    0  1 1
        WAIT    0    14   20    .    .    1    .    0    0  1 0
        WAIT    1    18   20    .    .    1    .    0    0  1 0
        MIX     0    20   20   11    9    1    .    0    0  1 0
        MIX     1    20   20   12   10    1    .    0    0  1 0
        """,
    ),
    (
        # pulls at 0 share the server's 4 bytes/s: 2 s each. a: 2 s, push 2 s (its link 2 bytes/s), pull 6-8. b: 4 s, push 1 s,
        # then its pull at 7 gets 2 bytes/s until a's ends at 8 and 4 from then on: 2 + 2 bytes, 8.5
        "asgd",
        {},
        4,
        """
        REDUCE  0     0    2    .    .    0    .    0    0  1 1
        WAIT    0     0    2    .    .    0    .    0    0  1 2
        COPY    0     2    2    0    .    0    .    0    0  1 0
        REDUCE  1     0    2    .    .    1    .    0    0  1 1
        WAIT    1     0    2    .    .    1    .    0    0  1 2
        COPY    1     2    2    0    .    1    .    0    0  1 0
        GRAD    0     2    4    0    .    .    0    2    0  1 0
        JOIN    0     4    4    .    .    2    0    2    0  1 0
        REDUCE  0     4    6    .    .    2    .    2    0  1 0
        WAIT    0     4    6    .    .    2    .    0    0  1 1
        GRAD    1     2    6    0    .    .    1    2    2  1 0
        JOIN    1     6    6    .    .    4    1    2    0  1 0
        STEP    2     6    6    1    0    2    .    2    2  1 0
        REDUCE  1     6    7    .    .    4    .    2    0  1 0
        WAIT    1     6    7    .    .    4    .    0    0  1 1
        STEP    2     7    7    2    1    4    .    2    2  1 0
        REDUCE  0     6    8    .    .    3    .    0    0  1 1
        WAIT    0     6    8    .    .    3    .    0    0  1 2
        COPY    0     8    8    1    .    3    .    0    0  1 0
        REDUCE  1     7  8.5    .    .    5    .    0    0  1 1
        WAIT    1     7  8.5    .    .    5    .    0    0  1 2
        COPY    1   8.5  8.5    2    .    5    .    0    0  1 0
        GRAD    0     8   10    1    .    .    2    2    4  1 0
        JOIN    0    10   10    .    .    6    2    2    0  1 0
        REDUCE  0    10   12    .    .    6    .    2    0  1 0
        WAIT    0    10   12    .    .    6    .    0    0  1 1
        STEP    2    12   12    3    2    6    .    2    2  1 0
        GRAD    1   8.5 12.5    2    .    .    3    2    6  1 0
        JOIN    1  12.5 12.5    .    .    8    3    2    0  1 0
        REDUCE  1  12.5 13.5    .    .    8    .    2    0  1 0
        WAIT    1  12.5 13.5    .    .    8    .    0    0  1 1
        STEP    2  13.5 13.5    4    3    8    .    2    2  1 0
        REDUCE  0    12   14    .    .    7    .    0    0  1 1
        WAIT    0    12   14    .    .    7    .    0    0  1 2
        COPY    0    14   14    3    .    7    .    0    0  1 0
        REDUCE  1  13.5 14.75    .    .    9    .    0    0  1 1
        WAIT    1  13.5 14.75    .    .    9    .    0    0  1 2
        COPY    1  14.75 14.75    4    .    9    .    0    0  1 0
        GRAD    0    14   16    3    .    .    4    2    8  1 0
        JOIN    0    16   16    .    .   10    4    2    0  1 0
        REDUCE  0    16   18    .    .   10    .    2    0  1 0
        WAIT    0    16   18    .    .   10    .    0    0  1 1
        STEP    2    18   18    5    4   10    .    2    2  1 0
        REDUCE  0    18   20    .    .   11    .    0    0  1 1
        WAIT    0    18   20    .    .   11    .    0    0  1 2
        COPY    0    20   20    5    .   11    .    0    0  1 0
        """,
    ),
    (
        # like asgd, but a's pull at 6 is held until b has pushed at 7 (GATE, code 3), then both answers share the server's link: 7-9
        "ssp",
        {"staleness": 0},
        4,
        """
        REDUCE  0     0    2    .    .    0    .    0    0  1 1
        WAIT    0     0    2    .    .    0    .    0    0  1 2
        COPY    0     2    2    0    .    0    .    0    0  1 0
        REDUCE  1     0    2    .    .    1    .    0    0  1 1
        WAIT    1     0    2    .    .    1    .    0    0  1 2
        COPY    1     2    2    0    .    1    .    0    0  1 0
        GRAD    0     2    4    0    .    .    0    2    0  1 0
        JOIN    0     4    4    .    .    2    0    2    0  1 0
        REDUCE  0     4    6    .    .    2    .    2    0  1 0
        WAIT    0     4    6    .    .    2    .    0    0  1 1
        GRAD    1     2    6    0    .    .    1    2    2  1 0
        JOIN    1     6    6    .    .    4    1    2    0  1 0
        STEP    2     6    6    1    0    2    .    2    2  1 0
        REDUCE  1     6    7    .    .    4    .    2    0  1 0
        WAIT    1     6    7    .    .    4    .    0    0  1 1
        STEP    2     7    7    2    1    4    .    2    2  1 0
        WAIT    0     6    7    .    .    3    .    0    0  1 3
        REDUCE  0     7    9    .    .    3    .    0    0  1 1
        WAIT    0     7    9    .    .    3    .    0    0  1 2
        COPY    0     9    9    2    .    3    .    0    0  1 0
        REDUCE  1     7    9    .    .    5    .    0    0  1 1
        WAIT    1     7    9    .    .    5    .    0    0  1 2
        COPY    1     9    9    2    .    5    .    0    0  1 0
        GRAD    0     9   11    2    .    .    2    2    4  1 0
        JOIN    0    11   11    .    .    6    2    2    0  1 0
        REDUCE  0    11   13    .    .    6    .    2    0  1 0
        WAIT    0    11   13    .    .    6    .    0    0  1 1
        GRAD    1     9   13    2    .    .    3    2    6  1 0
        JOIN    1    13   13    .    .    8    3    2    0  1 0
        STEP    2    13   13    3    2    6    .    2    2  1 0
        REDUCE  1    13   14    .    .    8    .    2    0  1 0
        WAIT    1    13   14    .    .    8    .    0    0  1 1
        STEP    2    14   14    4    3    8    .    2    2  1 0
        WAIT    0    13   14    .    .    7    .    0    0  1 3
        REDUCE  0    14   16    .    .    7    .    0    0  1 1
        WAIT    0    14   16    .    .    7    .    0    0  1 2
        COPY    0    16   16    4    .    7    .    0    0  1 0
        REDUCE  1    14   16    .    .    9    .    0    0  1 1
        WAIT    1    14   16    .    .    9    .    0    0  1 2
        COPY    1    16   16    4    .    9    .    0    0  1 0
        """,
    ),
    (
        # micro-batches of 1 s and 2 s; all-reduces 2-4, 4-6, 6-8 follow each other without a gap; a's batches are 1, 3 (1-4)
        # and 2 samples. At 4 both workers reach a boundary at which synchronization 0 is complete: completion comes first; of the two the
        # one whose pass began earlier
        "abs-sgd",
        {"compute_point": "current"},
        3,
        """
        GRAD    0     0    1    0    .    .    0    1    0  1 0
        JOIN    0     1    1    .    .    0    0    1    0  1 0
        GRAD    1     0    2    0    .    .    1    1    1  1 0
        JOIN    1     2    2    .    .    0    1    1    0  1 0
        GRAD    0     1    2    0    .    .    2    1    2  1 0
        GRAD    0     2    3    0    .    .    2    1    4  1 0
        REDUCE  *     2    4    .    .    0    .    2    0  1 0
        GRAD    1     2    4    0    .    .    3    1    3  1 0
        STEP    1     4    4    1    0    0    .    2    2  1 0
        JOIN    1     4    4    .    .    1    3    1    0  1 0
        GRAD    0     3    4    0    .    .    2    1    5  1 0
        JOIN    0     4    4    .    .    1    2    3    0  1 0
        GRAD    0     4    5    1    .    .    4    1    7  1 0
        REDUCE  *     4    6    .    .    1    .    4    0  1 0
        GRAD    1     4    6    1    .    .    5    1    6  1 0
        STEP    1     6    6    2    1    1    .    4    4  1 0
        JOIN    1     6    6    .    .    2    5    1    0  1 0
        GRAD    0     5    6    1    .    .    4    1    8  1 0
        JOIN    0     6    6    .    .    2    4    2    0  1 0
        GRAD    0     6    7    2    .    .    6    1   10  1 0
        REDUCE  *     6    8    .    .    2    .    3    0  1 0
        GRAD    1     6    8    2    .    .    7    1    9  1 0
        STEP    1     8    8    3    2    2    .    3    3  1 0
        DISCARD 1     8    8    .    .    .    7    1    0  1 3
        GRAD    0     7    8    2    .    .    6    1   11  1 0
        DISCARD 0     8    8    .    .    .    6    2    0  1 3
        """,
    ),
]
