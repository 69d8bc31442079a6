"""Every error that Benthic raises for a user's mistake or for the world's, in one tree.

    BenthicError
    |-- ConfigError (ValueError)          a configuration file, field or override
    |-- CheckpointError                   files of weights: missing, unexpected, misshapen, corrupt
    |-- KernelInputError (ValueError)     shapes, dtypes or values that an operation cannot take
    |-- ExactnessError                    this machine's products depend on neighbouring rows
    |-- KernelUnavailable                 a compiled kernel cannot be had or launched on this machine
    |-- RequestError (ValueError)         one request, refused; the others go on
    |   |-- PromptTooLong
    |   |-- BadSchema
    |   |-- UnknownModel
    |   `-- Cancelled
    |-- CapacityError                     no room now; the same request may succeed later
    |-- EngineError                       the engine or its process failed, or was closed
    |   `-- WeightsLostError              an update failed half-way, and the old weights are not back either
    |-- TrainingError                     a run that cannot go on: values that are not finite
    |-- BenchError                        a measurement that cannot be made: no server, a broken answer
    |-- SandboxError                      a sandbox or a command in it failed: its own tree in sandbox/errors.py
    `-- DataError (ValueError)            training data

A message says what was wrong, the value, and what would be right. Programmer mistakes assert instead.
"""

_SHOWN_LEN = 100


def shown(value: object) -> str:
    """A wrong value as a message shows it: short, and without an error of its own whatever the value is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list without end
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _SHOWN_LEN else f"{text[:_SHOWN_LEN]}..."


class BenthicError(Exception):
    """Root of the tree."""


class ConfigError(BenthicError, ValueError):
    """A configuration file, field or override is wrong."""


class CheckpointError(BenthicError):
    """Weights could not be read or written as asked."""


class KernelInputError(BenthicError, ValueError):
    """An operation was given tensors or values that it cannot take."""


class ExactnessError(BenthicError):
    """A row's bits depend on its neighbours on this machine, and no remedy held."""


class KernelUnavailable(BenthicError):
    """A compiled kernel cannot be had on this machine: no compiler, a refused source, a failed launch."""


class RequestError(BenthicError, ValueError):
    """One request is refused. `param` names the offending field, where there is one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(RequestError):
    """The prompt leaves no room for a token in the context."""


class BadSchema(RequestError):
    """A JSON schema, grammar or tool definition cannot be used."""


class UnknownModel(RequestError):
    """The request names a model that is not served."""


class Cancelled(RequestError):
    """The client went away or the request timed out."""


class CapacityError(BenthicError):
    """There is no room for this now."""


class EngineError(BenthicError):
    """The engine or its process failed while it should have answered."""


class WeightsLostError(EngineError):
    """An update of weights failed half-way and the old ones are not back: an engine waits for another update."""


class DataError(BenthicError, ValueError):
    """Training data is not what it should be."""


class TrainingError(BenthicError):
    """A training run cannot go on."""


class BenchError(BenthicError):
    """A measurement cannot be made as asked."""


class SandboxError(BenthicError):
    """A sandbox could not be started, died, or refused a call."""

    is_infra: bool = False
    """Whether the machine and not the agent inside is to blame: such an episode has no reward, not a reward of zero."""
