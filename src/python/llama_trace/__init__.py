"""Reads runs that llama-trace recorded, writes the stages of a port, and compares two runs.

    import llama_trace

    trace = llama_trace.open("run.trace")          # a trace, an export folder or a capture folder
    trace["p0/L1/softmax"]                         # a numpy array with `axes` ("head", "token", "key")

    with llama_trace.Recorder("own", precision="f32") as recorder:
        recorder.begin_pass([1, 403, 407])
        recorder["L0/xq"] = xq                     # numpy, torch, jax or mlx

    llama_trace.diff("reference", "own", model="DIR")["first"]
"""

from ._array import Array
from ._program import Failed, assert_same, diff
from ._recorder import Recorder
from ._trace import Damaged, Trace, open

__all__ = ["Array", "Damaged", "Failed", "Recorder", "Trace", "assert_same", "diff", "open"]
