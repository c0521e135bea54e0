"""Queue models in closed form (or solved to rounding): one small class a model, all answering the same questions."""

from analysis.queues.approximations import GG1, GGc
from analysis.queues.base import OpenQueue, UnstableQueueError
from analysis.queues.batch_arrival import BatchArrival
from analysis.queues.batch_service import BatchService
from analysis.queues.closed import ClosedNetwork, ClosedStation
from analysis.queues.deterministic import MD1, MDc
from analysis.queues.engine import EngineLimits, FirstToken, budget_limit, kv_limit, seat_limit
from analysis.queues.erlang import MM1, MMc, MMcK, erlang_b, erlang_c
from analysis.queues.erlang_a import ErlangA
from analysis.queues.fluid import Fluid
from analysis.queues.fork_join import ForkJoin
from analysis.queues.gim1 import GIM1
from analysis.queues.mg1 import MG1
from analysis.queues.mmpp import MMPP1
from analysis.queues.priority import Priority
from analysis.queues.processor_sharing import PS, LimitedPS
from analysis.queues.robust import RobustQueue
from analysis.queues.service import PhaseType, Service, as_service
from analysis.queues.size_based import SJF, SRPT
from analysis.queues.state_dependent import StateDependent

__all__ = [
    "GG1",
    "GIM1",
    "MD1",
    "MG1",
    "MM1",
    "MMPP1",
    "PS",
    "SJF",
    "SRPT",
    "BatchArrival",
    "BatchService",
    "ClosedNetwork",
    "ClosedStation",
    "EngineLimits",
    "ErlangA",
    "FirstToken",
    "Fluid",
    "ForkJoin",
    "GGc",
    "LimitedPS",
    "MDc",
    "MMc",
    "MMcK",
    "OpenQueue",
    "PhaseType",
    "Priority",
    "RobustQueue",
    "Service",
    "StateDependent",
    "UnstableQueueError",
    "as_service",
    "budget_limit",
    "erlang_b",
    "erlang_c",
    "kv_limit",
    "seat_limit",
]
