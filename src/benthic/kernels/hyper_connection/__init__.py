"""Manifold-constrained hyper-connections: n residual streams mixed into a sub-layer's input and back."""

from benthic.kernels.hyper_connection.op import HyperMix, hyper_head, hyper_post, hyper_pre, sinkhorn

__all__ = ["HyperMix", "hyper_head", "hyper_post", "hyper_pre", "sinkhorn"]
