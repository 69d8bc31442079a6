"""From one sub-layer to the next under mHC: its output merged, streams mixed, normed and rounded, as one operation."""

from benthic.kernels.hyper_boundary.op import Boundary, Exit, hyper_boundary, hyper_exit
from benthic.kernels.hyper_boundary.reference import merged

__all__ = ["Boundary", "Exit", "hyper_boundary", "hyper_exit", "merged"]
