"""Logs of two workers, a row a line, worked out by hand, of the algorithms that average replicas: see golden_tables."""

from __future__ import annotations

from typing import Any

AVERAGING: list[tuple[str, dict[str, Any], int, str]] = [
    (
        # a is active, b passive; an exchange takes 2·4/(2·2) = 2 s, as a's batch does: a averages with b every 2 s and steps from the
        # average with a gradient taken before it; b, whose batch takes 4 s, is averaged twice in the meantime and steps from where its
        # replica then is
        "ad-psgd",
        {},
        3,
        """
        JOIN    0    0    0    0    .    0    .    0    0    1    0
        JOIN    1    2    2    0    .    0    .    0    0    1    0
        REDUCE  *    0    2    .    .    0    .    0    0    1    1
        MIX     0    2    2    1    0    0    .    0    0    1    0
        MIX     1    2    2    1    0    0    .    0    0    1    0
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        STEP    0    2    2    2    1    .    0    2    2    1    0
        JOIN    0    2    2    2    .    1    .    0    0    1    0
        JOIN    1    4    4    1    .    1    .    0    0    1    0
        REDUCE  *    2    4    .    .    1    .    0    0    1    1
        MIX     0    4    4    3    2    1    .    0    0    1    0
        MIX     1    4    4    4    1    1    .    0    0    1    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        STEP    1    4    4    5    4    .    1    2    2    1    0
        GRAD    0    2    4    2    .    .    2    2    4    1    0
        STEP    0    4    4    6    3    .    2    2    2    1    0
        JOIN    0    4    4    6    .    2    .    0    0    1    0
        JOIN    1    6    6    5    .    2    .    0    0    1    0
        REDUCE  *    4    6    .    .    2    .    0    0    1    1
        MIX     0    6    6    7    6    2    .    0    0    1    0
        MIX     1    6    6    8    5    2    .    0    0    1    0
        GRAD    0    4    6    6    .    .    3    2    8    1    0
        STEP    0    6    6    9    7    .    3    2    2    1    0
        GRAD    1    4    8    5    .    .    4    2    6    1    0
        STEP    1    8    8   10    8    .    4    2    2    1    0
        """,
    ),
    (
        # H = 2, P = 2, τ = 1: a fragment of 2 bytes leaves after every step and takes 2·2/(2·2) = 1 s; the first starts when b joins at 4,
        # so a, two steps ahead, waits for it until 5. Code 2 is the outer optimizer's average of the fragment in the tenth column, mixed
        # by 1/2
        "streaming-diloco",
        {"local_steps": 2, "fragments": 2},
        2,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        STEP    0    2    2    1    0    .    0    2    2    1    0
        JOIN    0    2    2    1    .    0    .    0    0    1    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        STEP    1    4    4    2    0    .    1    2    2    1    0
        JOIN    1    4    4    2    .    0    .    0    0    1    0
        GRAD    0    2    4    1    .    .    2    2    4    1    0
        STEP    0    4    4    3    1    .    2    2    2    1    0
        JOIN    0    4    4    3    .    1    .    0    0    1    0
        REDUCE  *    4    5    .    .    0    .    0    0    1    1
        WAIT    0    4    5    .    .    0    .    0    0    1    0
        MIX     0    5    5    4    3    0    .    0    0  0.5    2
        GRAD    0    5    7    4    .    .    3    2    8    1    0
        STEP    0    7    7    5    4    .    3    2    2    1    0
        JOIN    0    7    7    5    .    2    .    0    0    1    0
        GRAD    1    4    8    2    .    .    4    2    6    1    0
        STEP    1    8    8    6    2    .    4    2    2    1    0
        JOIN    1    8    8    6    .    1    .    0    0    1    0
        MIX     1    8    8    7    6    0    .    0    0  0.5    2
        REDUCE  *    8    9    .    .    1    .    0    0    1    1
        WAIT    0    7    9    .    .    1    .    0    0    1    0
        MIX     0    9    9    8    5    1    .    0    1  0.5    2
        GRAD    1    8   12    7    .    .    5    2   10    1    0
        STEP    1   12   12    9    7    .    5    2    2    1    0
        JOIN    1   12   12    9    .    2    .    0    0    1    0
        MIX     1   12   12   10    9    1    .    0    1  0.5    2
        REDUCE  *   12   13    .    .    2    .    0    0    1    1
        WAIT    0    9   13    .    .    2    .    0    0    1    0
        WAIT    1   12   13    .    .    2    .    0    0    1    0
        MIX     0   13   13   11    8    2    .    0    0  0.5    2
        MIX     1   13   13   12   10    2    .    0    0  0.5    2
        """,
    ),
    (
        # H = 2, d = 1: the average starts when b has made two steps at 8 and takes 2 s; a, a step ahead, waits until 10, b merges after
        # its third step at 12, each from where it is by the average less what it sent (the anchor in the eighth column; code 3)
        "dasgd",
        {"local_steps": 2},
        2,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        STEP    0    2    2    1    0    .    0    2    2    1    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        STEP    1    4    4    2    0    .    1    2    2    1    0
        GRAD    0    2    4    1    .    .    2    2    4    1    0
        STEP    0    4    4    3    1    .    2    2    2    1    0
        JOIN    0    4    4    3    .    0    .    0    0    4    0
        GRAD    0    4    6    3    .    .    3    2    8    1    0
        STEP    0    6    6    4    3    .    3    2    2    1    0
        GRAD    1    4    8    2    .    .    4    2    6    1    0
        STEP    1    8    8    5    2    .    4    2    2    1    0
        JOIN    1    8    8    5    .    0    .    0    0    4    0
        REDUCE  *    8   10    .    .    0    .    0    0    1    1
        WAIT    0    6   10    .    .    0    .    0    0    1    0
        MIX     0   10   10    6    4    0    3    0    0    1    3
        GRAD    1    8   12    5    .    .    5    2   10    1    0
        STEP    1   12   12    7    5    .    5    2    2    1    0
        MIX     1   12   12    8    7    0    5    0    0    1    3
        GRAD    0   10   12    6    .    .    6    2   12    1    0
        STEP    0   12   12    9    6    .    6    2    2    1    0
        JOIN    0   12   12    9    .    1    .    0    0    4    0
        GRAD    0   12   14    9    .    .    7    2   16    1    0
        STEP    0   14   14   10    9    .    7    2    2    1    0
        GRAD    1   12   16    8    .    .    8    2   14    1    0
        STEP    1   16   16   11    8    .    8    2    2    1    0
        JOIN    1   16   16   11    .    1    .    0    0    4    0
        REDUCE  *   16   18    .    .    1    .    0    0    1    1
        WAIT    0   14   18    .    .    1    .    0    0    1    0
        MIX     0   18   18   12   10    1    9    0    0    1    3
        GRAD    1   16   20   11    .    .    9    2   18    1    0
        STEP    1   20   20   13   11    .    9    2    2    1    0
        MIX     1   20   20   14   13    1   11    0    0    1    3
        """,
    ),
    (
        # an average takes 2 s: d_1 of both travels from 4 to 6 while both compute where they are; a waits for it, steps from it (λ₀ = .2 in
        # the tenth column, code 3) and sends d_2; b takes it over when its pass is done at 8
        "dc-s3gd",
        {},
        2,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        STEP    0    2    2    1    0    .    0    2    2  0.2    3
        JOIN    0    2    2    1    .    0    .    0    0    2    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        STEP    1    4    4    2    0    .    1    2    2  0.2    3
        JOIN    1    4    4    2    .    0    .    0    0    2    0
        GRAD    0    2    4    1    .    .    2    2    4    1    0
        REDUCE  *    4    6    .    .    0    .    0    0    1    1
        WAIT    0    4    6    .    .    0    .    0    0    1    0
        MIX     0    6    6    3    1    0    .    0    0    1    0
        STEP    0    6    6    4    3    .    2    2    2  0.2    3
        JOIN    0    6    6    4    .    1    .    0    0    2    0
        GRAD    1    4    8    2    .    .    3    2    6    1    0
        MIX     1    8    8    5    2    0    .    0    0    1    0
        STEP    1    8    8    6    5    .    3    2    2  0.2    3
        JOIN    1    8    8    6    .    1    .    0    0    2    0
        GRAD    0    6    8    4    .    .    4    2    8    1    0
        REDUCE  *    8   10    .    .    1    .    0    0    1    1
        WAIT    0    8   10    .    .    1    .    0    0    1    0
        MIX     0   10   10    7    4    1    .    0    0    1    0
        DISCARD 0   10   10    .    .    .    4    2    0    1    3
        GRAD    1    8   12    6    .    .    5    2   10    1    0
        MIX     1   12   12    8    6    1    .    0    0    1    0
        DISCARD 1   12   12    .    .    .    5    2    0    1    3
        """,
    ),
    (
        # a asks at 2: both are in no group, and so in one; b joins at 4, both wait for the average until 6, and again
        "prague",
        {},
        2,
        """
        GRAD    0    0    2    0    .    .    0    2    0    1    0
        STEP    0    2    2    1    0    .    0    2    2    1    0
        JOIN    0    2    2    1    .    0    .    0    0    1    0
        GRAD    1    0    4    0    .    .    1    2    2    1    0
        STEP    1    4    4    2    0    .    1    2    2    1    0
        JOIN    1    4    4    2    .    0    .    0    0    1    0
        REDUCE  *    4    6    .    .    0    .    0    0    1    1
        WAIT    0    2    6    .    .    0    .    0    0    1    0
        WAIT    1    4    6    .    .    0    .    0    0    1    0
        MIX     0    6    6    3    1    0    .    0    0    1    0
        MIX     1    6    6    4    2    0    .    0    0    1    0
        GRAD    0    6    8    3    .    .    2    2    4    1    0
        STEP    0    8    8    5    3    .    2    2    2    1    0
        JOIN    0    8    8    5    .    1    .    0    0    1    0
        GRAD    1    6   10    4    .    .    3    2    6    1    0
        STEP    1   10   10    6    4    .    3    2    2    1    0
        JOIN    1   10   10    6    .    1    .    0    0    1    0
        REDUCE  *   10   12    .    .    1    .    0    0    1    1
        WAIT    0    8   12    .    .    1    .    0    0    1    0
        WAIT    1   10   12    .    .    1    .    0    0    1    0
        MIX     0   12   12    7    5    1    .    0    0    1    0
        MIX     1   12   12    8    6    1    .    0    0    1    0
        """,
    ),
]
