"""Root-mean-square normalisation of the last dimension."""

from benthic.kernels.rms_norm.op import rms_norm

__all__ = ["rms_norm"]
