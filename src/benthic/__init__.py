"""Benthic: the DeepSeek-V4 system in one readable package.

The public names load on first use, so that `import benthic` and `benthic --help` never import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benthic.engine.sampling import SamplingParams
    from benthic.llm import LLM, AsyncLLM, RequestOutput
    from benthic.models.checkpoint import load_model

__version__ = "0.1.0"
__all__ = ["AsyncLLM", "LLM", "RequestOutput", "SamplingParams", "load_model"]

_HOME = {
    "AsyncLLM": "benthic.llm",
    "LLM": "benthic.llm",
    "RequestOutput": "benthic.llm",
    "SamplingParams": "benthic.engine.sampling",
    "load_model": "benthic.models.checkpoint",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'benthic' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
