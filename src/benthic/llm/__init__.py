"""The front doors for Python: a model in this process, asked by calls that block or by awaits."""

from benthic.llm.answers import CompletionOutput, RequestOutput
from benthic.llm.async_llm import AsyncLLM, CompletionDelta
from benthic.llm.llm import LLM

__all__ = ["AsyncLLM", "CompletionDelta", "CompletionOutput", "LLM", "RequestOutput"]
