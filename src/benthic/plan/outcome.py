"""The three boxes put against a machine at one context: which way of sharing it is best, and which box binds."""

from dataclasses import dataclass

from benthic.plan.fit import Fit, fits, least_devices
from benthic.plan.floors import Balance, Floors, Step
from benthic.plan.hardware import Machine, Source
from benthic.plan.sizing import Sizing
from benthic.plan.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True)
class Outcome:
    """A sizing on a machine, for `concurrency` conversations of `context` tokens each.

    `ways` are all ways of sharing the machine, `best` the one whose decode step is fastest among those that hold all
    conversations (or else the roomiest), None where no way holds a conversation. `least` is the smallest group of such
    devices that holds one. `decode` and `prefill` are passes under `best`; `decode` has as many conversations as fit.
    `balance` is of the experts' exchange over all devices; None for one device.
    """

    sizing: Sizing
    machine: Machine
    source: Source
    context: int
    concurrency: int
    ways: tuple[Fit, ...]
    best: Fit | None
    least: Fit | None
    decode: Step | None
    prefill: Step | None
    balance: Balance | None

    @property
    def conversations(self) -> int:
        """That fit."""
        return self.best.conversations if self.best else 0

    @property
    def tokens_per_s(self) -> float:
        """That all conversations together get at most, drafts not counted."""
        return self.decode.conversations / self.decode.floor_s if self.decode else 0.0

    @property
    def binds(self) -> str:
        """The box that binds: "weights", "state" or "computation"."""
        if self.best is None:
            return "weights" if not any(fit.fits for fit in self.ways) else "state"
        return "state" if self.conversations < self.concurrency else "computation"

    @property
    def words(self) -> str:
        """What binds, with its numbers."""
        at = f"{self.concurrency:,} conversations of {self.context:,} tokens"
        match self.binds:
            case "weights":
                return f"weights bind: {bytes_text(self.sizing.weight_bytes)} leave no room; {self._least()}"
            case "state" if self.best is None:
                return f"state binds: not one conversation of {self.context:,} tokens fits; {self._least()}"
            case "state":
                return f"state binds: {self.conversations:,} of {at} fit ({self.best_name})"
            case _:
                return f"computation binds, in {self._bound()}: {self.conversations:,} such conversations would fit"

    @property
    def best_name(self) -> str:
        """Of the way that is best."""
        return self.best.name if self.best else "none"

    def _bound(self) -> str:
        assert self.decode is not None
        return f"{self.decode.bound} (a step of {self.concurrency:,} takes >= {seconds_text(self.decode.floor_s)})"

    def _least(self) -> str:
        if self.least is None:
            return "no group of up to 512 such devices holds it"
        return f"the least is {self.least.num_devices} devices ({self.least.name})"


def outcome(sizing: Sizing, machine: Machine, source: Source, context: int, concurrency: int) -> Outcome:
    """Tries all ways of sharing the machine."""
    ways = fits(sizing.config, sizing.held, sizing.state, machine, context)
    able = [fit for fit in ways if fit.conversations]
    enough = [fit for fit in able if fit.conversations >= concurrency]
    best: Fit | None = None
    if enough:
        best = min(enough, key=lambda fit: _decode(sizing, fit, machine, source, context, concurrency).floor_s)
    elif able:
        best = max(able, key=lambda fit: fit.conversations)
    decode = prefill = None
    if best is not None:
        running = min(concurrency, best.conversations)
        decode = _decode(sizing, best, machine, source, context, running)
        prefill = _floors(sizing, best, machine, source).prefill(context)
    least = least_devices(sizing.config, sizing.held, sizing.state, machine.device, context)
    balance = next((_floors(sizing, fit, machine, source).balance() for fit in ways if _is_whole(fit, machine)), None)
    return Outcome(sizing, machine, source, context, concurrency, ways, best, least, decode, prefill, balance)


def _is_whole(fit: Fit, machine: Machine) -> bool:
    return fit.num_devices == machine.num_devices > 1 and fit.layout == "EP"


def _floors(sizing: Sizing, fit: Fit, machine: Machine, source: Source) -> Floors:
    return Floors(sizing.config, sizing.costs, sizing.held, fit, machine, source)


def _decode(sizing: Sizing, fit: Fit, machine: Machine, source: Source, context: int, conversations: int) -> Step:
    num_drafts = 1 if sizing.formats.draft == "mtp" else 0
    return _floors(sizing, fit, machine, source).decode(conversations, context, num_drafts=num_drafts)
