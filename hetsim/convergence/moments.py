"""Second moments of jointly linear variables, one variable replaced at a time.

Everything a linear optimizer does to a quadratic is `new = Σ a_j old_j + independent noise`. `Moments` keeps E z_i z_j of R live
variables for N columns at once (a column is one direction under one setting), so an operation touches one row and one column:
O(terms · R · N) instead of the O(R³ N) of a dense A S Aᵀ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Coefficient = float | Floats
Term = tuple[int, Coefficient | None]  # (row, coefficient); None is exactly one


class PairMap(NamedTuple):
    """x' = xx·x + xv·v, v' = vx·x + vv·v, plus noise with the covariance (qxx, qxv, qvv); arrays of shape (N,)."""

    xx: Floats
    xv: Floats
    vx: Floats
    vv: Floats
    qxx: Floats
    qxv: Floats
    qvv: Floats


class Moments:
    """E z_i z_j, shape (R, R, N), symmetric in the first two axes. All variables start at zero."""

    def __init__(self, rows: int, columns: int) -> None:
        self.C: Floats = np.zeros((rows, rows, columns))
        self._product: Floats = np.empty((rows, columns))

    def start(self, row: int, variance: Floats) -> None:
        """Make `row` a variable independent of all others."""
        self.C[row] = 0.0
        self.C[:, row] = 0.0
        self.C[row, row] = variance

    def combine(self, out: int, terms: Sequence[Term], noise: Coefficient | None = None) -> None:
        """z_out := Σ a_j z_j + noise of that variance. Where `out` is among the terms it must come first (in place)."""
        moments, product = self.C, self._product
        row: Floats = moments[out]
        first, coefficient = terms[0]
        rest = terms[1:]
        if coefficient is not None:
            np.multiply(moments[first], coefficient, out=row)
        elif first != out and rest and rest[0][1] is not None:  # a + b·c without a copy of a
            np.multiply(moments[rest[0][0]], rest[0][1], out=product)
            np.add(moments[first], product, out=row)
            rest = rest[1:]
        elif first != out:
            row[...] = moments[first]
        for j, a in rest:
            if a is None:
                row += moments[j]
            else:
                np.multiply(moments[j], a, out=product)
                row += product
        variance = np.zeros(row.shape[1])  # row[out] still is E(new · old out) here, which is what the sum needs
        for j, a in terms:
            variance += row[j] if a is None else a * row[j]
        if noise is not None:
            variance += noise
        moments[:, out] = row
        moments[out, out] = variance

    def keep(self, columns: NDArray[np.bool_]) -> None:
        """Drop the columns that are False."""
        self.C = np.ascontiguousarray(self.C[:, :, columns])
        self._product = np.empty(self.C.shape[1:])

    def transform(self, x: int, v: int, m: PairMap) -> None:
        """(x, v) := M (x, v) + noise of covariance Q, in place."""
        moments = self.C
        new_x = m.xx * moments[x] + m.xv * moments[v]
        new_v = m.vx * moments[x] + m.vv * moments[v]
        xx = m.xx * new_x[x] + m.xv * new_x[v] + m.qxx
        xv = m.vx * new_x[x] + m.vv * new_x[v] + m.qxv
        vv = m.vx * new_v[x] + m.vv * new_v[v] + m.qvv
        for row, new in ((x, new_x), (v, new_v)):
            moments[row] = new
            moments[:, row] = new
        moments[x, x], moments[v, v] = xx, vv
        moments[x, v] = moments[v, x] = xv
