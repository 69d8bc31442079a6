"""What another choice would do: each is planned anew, and what it changes is said in one sentence."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benthic.models.checkpoint.table import Weights
from benthic.plan.hardware import Machine
from benthic.plan.outcome import Outcome, outcome
from benthic.plan.rows import CacheFormat, has_official_cache
from benthic.plan.sizing import Formats, Sizing, size
from benthic.plan.units import bytes_text, seconds_text, tokens_text

WEIGHTS: tuple[Weights, ...] = ("official", "fp8", "bf16")


@dataclass(frozen=True, slots=True)
class Change:
    """`choice` in a few words, and the plan that it leads to."""

    choice: str
    after: Outcome

    def words(self, before: Outcome) -> str:
        """What it changes: weights, conversations that fit, the step's floor."""
        found = [*_sizes(before, self.after), _room(before, self.after), *_step(before, self.after)]
        return "; ".join(found)


def changes(before: Outcome) -> tuple[Change, ...]:
    """Other formats, more or fewer devices, another context, more conversations, drafts."""
    sizing, machine = before.sizing, before.machine
    found = [
        Change(choice, outcome(other, machine, before.source, before.context, before.concurrency))
        for choice, other in _other_formats(sizing)
    ]
    found += [
        Change(
            f"{count} devices" if count > 1 else "1 device",
            outcome(sizing, Machine(machine.device, count), before.source, before.context, before.concurrency),
        )
        for count in (machine.num_devices // 2, 2 * machine.num_devices)
        if count
    ]
    if shorter := before.context // 4:
        found.append(_asked(before, f"contexts of {tokens_text(shorter)}", context=shorter))
    found.append(_asked(before, f"{4 * before.concurrency:,} conversations", concurrency=4 * before.concurrency))
    return tuple(found)


def _asked(before: Outcome, choice: str, *, context: int | None = None, concurrency: int | None = None) -> Change:
    after = outcome(
        before.sizing,
        before.machine,
        before.source,
        before.context if context is None else context,
        before.concurrency if concurrency is None else concurrency,
    )
    return Change(choice, after)


def _other_formats(sizing: Sizing) -> Iterator[tuple[str, Sizing]]:
    subject, formats = sizing.subject, sizing.formats
    seen = {sizing.weight_bytes}
    for weights in WEIGHTS:
        other = size(subject, replace(formats, weights=weights))
        if other.weight_bytes not in seen:
            seen.add(other.weight_bytes)
            yield f"{weights} weights", other
    if has_official_cache(subject.config):
        cache: CacheFormat = "bf16" if formats.cache == "official" else "official"
        yield f"{cache} cache", size(subject, replace(formats, cache=cache))
    if subject.config.num_nextn_predict_layers:
        drafted: Formats = replace(formats, draft="none" if formats.draft == "mtp" else "mtp")
        yield f"draft {drafted.draft}", size(subject, drafted)


def _sizes(before: Outcome, after: Outcome) -> Iterator[str]:
    old, new = before.sizing.weight_bytes, after.sizing.weight_bytes
    if bytes_text(old) != bytes_text(new):
        yield f"weights {bytes_text(new)} instead of {bytes_text(old)}"
    old_state = before.sizing.state.conversation_bytes(before.context)
    new_state = after.sizing.state.conversation_bytes(after.context)
    if bytes_text(old_state) != bytes_text(new_state):
        yield f"a conversation {bytes_text(new_state)} instead of {bytes_text(old_state)}"


def _room(before: Outcome, after: Outcome) -> str:
    if after.best is None:
        return after.words
    if before.best is None:
        return f"it fits ({after.best.name}), conversations that fit: {after.conversations:,}"
    if after.best.name == before.best.name and after.conversations == before.conversations:
        return f"conversations that fit: {after.conversations:,}, as before"
    same = after.best.name == before.best.name
    new_name, old_name = ("", "") if same else (f" ({after.best.name})", f" ({before.best.name})")
    return f"conversations that fit: {after.conversations:,}{new_name} instead of {before.conversations:,}{old_name}"


def _step(before: Outcome, after: Outcome) -> Iterator[str]:
    if after.decode is None:
        return
    text = f"a step of {after.decode.conversations:,.0f} >= {seconds_text(after.decode.floor_s)}"
    if before.decode is None:
        yield text
    elif after.decode.conversations != before.decode.conversations:
        yield f"{text}, tokens/s <= {after.tokens_per_s:,.0f} instead of {before.tokens_per_s:,.0f}"
    else:
        ratio = after.decode.floor_s / before.decode.floor_s
        yield f"{text}, {ratio:.2f} times as long"
        if (before.sizing.formats.draft, after.sizing.formats.draft) == ("none", "mtp"):
            yield f"pays once more than {max(0.0, ratio - 1):.0%} of drafts are accepted"
