"""Requests in tokens, answers in tokens. The names here load no torch; `engine.engine` and `engine.worker` run it."""

from benthic.engine.config import EngineConfig
from benthic.engine.request import Event, FinalOutput, Request, RequestReport, RowExtras, TokenEvent, TokenLogprobs
from benthic.engine.sampling import SamplingParams

__all__ = [
    "EngineConfig",
    "Event",
    "FinalOutput",
    "Request",
    "RequestReport",
    "RowExtras",
    "SamplingParams",
    "TokenEvent",
    "TokenLogprobs",
]
