"""Simulations that answer with a run: the engine's own core in virtual time, and textbook queues."""

from analysis.simulation.engine import simulate_engine

__all__ = ["simulate_engine"]
