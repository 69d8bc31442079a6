"""Tools for agents: schemas and a dispatcher, tasks and their checks, episodes with a reward."""

from benthic.sandbox.tools.definitions import schemas_of
from benthic.sandbox.tools.environment import Environment, SandboxEnvironment, Step
from benthic.sandbox.tools.episode import Episode, run_episode
from benthic.sandbox.tools.task import (
    AnswerCheck,
    CallCheck,
    FileCheck,
    OutputCheck,
    ReportCheck,
    Reward,
    Task,
    Verdict,
)
from benthic.sandbox.tools.toolbox import Toolbox

__all__ = [
    "AnswerCheck",
    "CallCheck",
    "Environment",
    "Episode",
    "FileCheck",
    "OutputCheck",
    "ReportCheck",
    "Reward",
    "SandboxEnvironment",
    "Step",
    "Task",
    "Toolbox",
    "Verdict",
    "run_episode",
    "schemas_of",
]
