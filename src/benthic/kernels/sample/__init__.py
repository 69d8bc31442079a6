"""Drawing the next token."""

from benthic.kernels.sample.op import sample

__all__ = ["sample"]
