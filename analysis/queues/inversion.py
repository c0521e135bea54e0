"""Two independent ways from a transform (or its renewal equation) back to a tail: Euler summation and a lattice.

Euler's is accurate for smooth tails and loses digits at kinks; the lattice never loses monotonicity and takes kinks.
Where they disagree, one of them has failed, and ``MG1`` says so instead of answering.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from analysis.queues.service_base import Cells, Complexes, Floats

CELLS = 8192


def euler(transform: Callable[[Complexes], Complexes], t: float, terms: int = 24, averaged: int = 12) -> float:
    """f(t) from its Laplace transform, by Fourier series and Euler (binomial) summation.

    Abate & Whitt, ORSA J. Computing 7 (1995) 36-43, algorithm EULER: discretisation error about 1e-8 for |f| <= 1,
    ``terms`` plain terms, then a binomial average of the next ``averaged`` partial sums.
    """
    a = 18.4
    k = np.arange(terms + averaged + 1)
    values = transform(np.asarray((a + 2j * math.pi * k) / (2.0 * t), dtype=np.complex128)).real
    values[0] *= 0.5
    partial = np.cumsum(np.where(k % 2 == 0, 1.0, -1.0) * values)[terms:]
    binomial = np.array([math.comb(averaged, j) for j in range(averaged + 1)]) / 2.0**averaged
    return float(math.exp(a / 2.0) / t * (partial @ binomial))


def solve_lattice(g: Floats, straight: Floats, shifted: Floats) -> Floats:
    """u_n = g_n + sum over j < n of (straight_j u_(n-j) + shifted_j u_(n-1-j)), n = 0..N, for weights adding up to < 1.

    Product integration (piecewise linear u) of u = g + k * u. Solved as a power series on a circle of radius below 1,
    so that what the discrete Fourier transform wraps around is damped by 1e-12.
    """
    n = g.size
    size = 4 * (1 << (n - 1).bit_length())
    tilt = 10.0 ** (-12.0 / size * np.arange(size))

    def spectrum(x: Floats) -> Complexes:
        return np.asarray(np.fft.rfft(x * tilt[: x.size], size))

    a, b = spectrum(straight), spectrum(np.concatenate([[0.0], shifted]))
    u = np.fft.irfft((spectrum(g) - a * g[0]) / (1.0 - a - b), size)[:n] / tilt[:n]
    # Index 0 has no sum; the convolution above subtracts its straight_0 u_0 term exactly.
    return np.asarray(u, dtype=np.float64)


def apply_lattice(u: Floats, straight: Floats, shifted: Floats) -> Floats:
    """The sums of ``solve_lattice`` for a known u, index by index."""
    n = u.size
    size = 2 * (1 << (n - 1).bit_length())
    a, b = np.fft.rfft(straight, size), np.fft.rfft(np.concatenate([[0.0], shifted]), size)
    v = np.fft.rfft(u, size)
    return np.asarray(np.fft.irfft((a + b) * v - a * u[0], size)[:n])


def _halve(cells: Cells) -> Cells:
    whole = cells.whole[::2] + cells.whole[1::2]
    sloped = 0.5 * (cells.sloped[::2] + cells.sloped[1::2] + cells.whole[1::2])
    return Cells(whole, sloped)


@dataclass(frozen=True)
class Stretch:
    """Wait and sojourn tails of an M/G/1 on [0, end] at equal steps; what the extrapolation changed of the wait."""

    end: float
    wait: Floats
    sojourn: Floats
    change: Floats


def mg1_stretch(lam: float, mean: float, cells: Cells, sf: Floats, h: float) -> Stretch:
    """Wait and sojourn tails of the M/G/1 queue on a lattice, from the integrals of the service tail over its cells.

    The wait tail u solves u = rho R + rho r * u with r the density and R the tail of the residual service time
    (Tijms, A First Course in Stochastic Models, 2003, eq. 8.2.10); the sojourn adds one service. Two step sizes and
    Richardson's extrapolation; what that changed is kept as a generous estimate of the error.

    Args:
        cells: integrals of P(S > x) over cells of width h, an even number of them.
        sf: P(S > jh) at the cells' edges, one more than cells.
    """
    fine = _mg1_once(lam, mean, cells, sf, h)
    coarse = _mg1_once(lam, mean, _halve(cells), sf[::2], 2.0 * h)
    wait, sojourn = (
        np.minimum.accumulate(np.clip((4.0 * f[::2] - c) / 3.0, 0.0, 1.0)) for f, c in zip(fine, coarse, strict=True)
    )
    return Stretch(h * cells.whole.size, wait, sojourn, np.abs(fine[0][::2] - coarse[0]) / 3.0)


def _mg1_once(lam: float, mean: float, cells: Cells, sf: Floats, h: float) -> tuple[Floats, Floats]:
    rho = lam * mean
    beyond = np.maximum(mean - np.concatenate([[0.0], np.cumsum(cells.whole)]), 0.0)
    wait = solve_lattice(lam * beyond, lam * (cells.whole - cells.sloped), lam * cells.sloped)
    wait[0] = rho
    # A service in cell j is split between the cell's edges so that its mean stays: weights from the same integrals.
    right = cells.whole / h - sf[1:]
    sojourn = sf + apply_lattice(wait, (sf[:-1] - sf[1:]) - right, right)
    return wait, sojourn


class Stretches:
    """A monotone tail put together from lattices whose lengths double, each built when first asked for.

    Args:
        build: end (s) -> values at equal steps on [0, end].
        first: length of the first lattice (s).
    """

    def __init__(self, build: Callable[[float], Floats], first: float) -> None:
        self._build, self._first = build, first
        self._pieces: list[tuple[float, PchipInterpolator]] = []

    def __call__(self, t: float) -> float:
        k = max(math.ceil(math.log2(t / self._first)), 0) if t > self._first else 0
        while len(self._pieces) <= k:
            end = self._first * 2.0 ** len(self._pieces)
            values = self._build(end)
            if self._pieces:
                # No higher than the lattice before ended, so that the joint stays monotone.
                values = np.minimum(values, float(self._pieces[-1][1](end / 2.0)))
            self._pieces.append((end, PchipInterpolator(np.linspace(0.0, end, values.size), values)))
        return float(self._pieces[k][1](t))
