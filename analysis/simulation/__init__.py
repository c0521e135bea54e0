"""Simulations that answer with a run: the engine's own core in virtual time, and textbook queues."""

from analysis.simulation.engine import simulate_engine
from analysis.simulation.queues import simulate_queue
from analysis.simulation.stations import Batches, Servers, Sharing

__all__ = ["Batches", "Servers", "Sharing", "simulate_engine", "simulate_queue"]
