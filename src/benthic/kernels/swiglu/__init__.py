"""The clamped SwiGLU activation of experts."""

from benthic.kernels.swiglu.op import swiglu

__all__ = ["swiglu"]
