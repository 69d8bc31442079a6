"""Orthogonalisation of update matrices for Muon."""

from benthic.kernels.newton_schulz.op import newton_schulz

__all__ = ["newton_schulz"]
