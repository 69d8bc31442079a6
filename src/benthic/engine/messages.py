"""What travels between an engine's owner and the loop that runs it, in a thread or in another process.

Commands go in, replies come out. All are frozen records of plain values, so that a process boundary changes nothing;
weights go by path; only within one process may a state dict be handed on.

    Request, Cancel                                    answered by events: tokens, then exactly one FinalOutput
    Pause, Resume and the other calls                  answered by one Done or Failed of the same `number`
    Close                                              answered by the end of the loop
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from benthic.engine.config import EngineConfig
from benthic.engine.grammar import MaskFactory
from benthic.engine.profiling import ProfileWish
from benthic.engine.request import Event, FinishReason, Request
from benthic.engine.start_report import StartReport
from benthic.engine.stats import EngineStats
from benthic.telemetry import LogFormat

PauseMode = Literal["abort", "keep", "retract"]
"""What becomes of running requests: they end as cancelled; they wait with their cache; they give it back and wait."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends a request; `reason` is what its final output says."""

    request_id: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Pause:
    """No further token is computed until `Resume`. Pausing twice is fine; the stronger mode wins."""

    number: int
    mode: PauseMode


@dataclass(frozen=True, slots=True)
class Resume:
    """Ends a pause."""

    number: int


@dataclass(frozen=True, slots=True)
class UpdateWeights:
    """Weights from a checkpoint folder or a file of `weights.write_weights`; answered with the version now in force."""

    number: int
    source: str | Mapping[str, Any]
    """A path; within one process also a state dict."""
    version: int | None
    """None: one more than any so far."""
    checksum: str | None = None
    """Refused unless the weights have this checksum."""
    held: str = ""
    """Another path to the file of `source`, good for as long as its holder lives; tried first."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Forgets every cached prefix that no running request holds."""

    number: int


@dataclass(frozen=True, slots=True)
class Dump:
    """Answered with a text: queues, pools, the last plan."""

    number: int


@dataclass(frozen=True, slots=True)
class Check:
    """Asserts the engine's conservation laws; a broken one is a failure that names it."""

    number: int


@dataclass(frozen=True, slots=True)
class ReadWeight:
    """Answered with the first values of one tensor, a JSON object."""

    number: int
    name: str
    max_values: int


@dataclass(frozen=True, slots=True)
class Checksum:
    """Answered with the checksum of the weights in force."""

    number: int


@dataclass(frozen=True, slots=True)
class ReleaseMemory:
    """Gives the cache's memory back until `TakeMemory`; only in a pause."""

    number: int


@dataclass(frozen=True, slots=True)
class TakeMemory:
    """Takes the cache's memory again."""

    number: int


@dataclass(frozen=True, slots=True)
class StartProfile:
    """Records the next steps; answered with the path at which the trace will be."""

    number: int
    wish: ProfileWish


@dataclass(frozen=True, slots=True)
class StopProfile:
    """Ends the recording; answered with the path of the trace."""

    number: int


@dataclass(frozen=True, slots=True)
class Close:
    """Ends every live request with an error, and the loop."""


Call = (
    Pause
    | Resume
    | UpdateWeights
    | Flush
    | Dump
    | Check
    | ReadWeight
    | Checksum
    | ReleaseMemory
    | TakeMemory
    | StartProfile
    | StopProfile
)
Command = Request | Cancel | Call | Close
COMMANDS = (Request, Cancel, *get_args(Call), Close)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says of itself once it can answer."""

    max_model_len: int
    vocab_size: int
    config: EngineConfig
    folder: str
    """Where the checkpoint lies, with its tokenizer."""
    budget: str = ""
    """The table of what memory is used for, ready to print."""
    pid: int = 0
    """Process in which it runs."""
    start: StartReport = field(default_factory=StartReport)


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is loaded and warm; the first reply of a child."""

    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The engine could not be built; the last reply of a child."""

    kind: str
    """Name of the error's class in `benthic.errors`, or of another exception."""
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What one turn of the loop brought."""

    events: tuple[Event, ...] = ()
    stats: EngineStats = field(default_factory=EngineStats)


@dataclass(frozen=True, slots=True)
class Done:
    """A call's good end."""

    number: int
    value: str = ""
    checksum: str = ""
    """Of the weights that were installed."""
    held: str = ""
    """Where the file that they came from can be opened for as long as they are in force."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A call's bad end; nothing has changed."""

    number: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What a child process needs to build an engine; None leaves a choice to the machine and the checkpoint."""

    model: str
    """A checkpoint folder, or the name of the bundled model."""
    device: str | None = None
    dtype: str | None = None
    numerics: Literal["plain", "quantized"] | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    log_format: LogFormat | None = None
    """How a child writes its log to stderr; None: as Python does by itself."""
    factory: str = "benthic.engine.build:build_engine"
    """`module:function` that makes a `BuiltEngine` of this record, in the child."""
    masks: MaskFactory | None = None
    """Makes, in the child, what reads the grammars of requests; None: requests with one are refused."""
    ahead: str | None = None
    """`module:function` that makes of this record, in a process that stands by to take a dead engine's place, its
    `BuiltEngine`, or None where it shall wait with the libraries alone; None: no process stands by."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """The first thing that a child is told which stands by; `Start` follows when it is needed."""

    spec: EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first thing that a child is told."""

    spec: EngineSpec
    weights: UpdateWeights | None
    """What the engine before it had been given last, with its checksum; loaded before it answers. If that fails, the
    engine starts without weights to answer with, and waits for an update."""
    versions: tuple[tuple[int, str], ...] = ()
    """Versions of weights so far, with their checksums."""
    is_paused: bool
    least_len: int = 0
    """The context that clients have been promised; an engine that was built ahead with a shorter one is not taken."""
    dump_path: str
    """Where a stalled step leaves its picture; empty: in the log alone."""


Reply = Ready | StartFailed | Report | Done | Failed
