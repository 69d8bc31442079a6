"""From one sub-layer to the next under mHC: its output merged, streams mixed, normed and rounded, as one operation."""

from benthic.kernels.hyper_boundary.op import Boundary, Exit, hyper_boundary, hyper_exit

__all__ = ["Boundary", "Exit", "hyper_boundary", "hyper_exit"]
