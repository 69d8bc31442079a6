"""The clamped SwiGLU activation of experts."""

from benthic.kernels.swiglu.op import swiglu, swiglu_rows

__all__ = ["swiglu", "swiglu_rows"]
