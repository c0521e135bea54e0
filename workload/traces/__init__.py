from workload.traces.raw import TraceError
from workload.traces.read import read_trace

__all__ = ["TraceError", "read_trace"]
