"""A plan as text: three boxes, what binds, what else could be chosen, comparisons, notes."""

from collections.abc import Callable, Iterator, Sequence

from benthic.plan.compare import Comparison
from benthic.plan.costs import equivalent, total
from benthic.plan.fit import MOST_DEVICES
from benthic.plan.hardware import Ceilings
from benthic.plan.notes import notes
from benthic.plan.outcome import Outcome
from benthic.plan.plan import MachinePlan, Plan
from benthic.plan.text import table, wrapped
from benthic.plan.traffic import decode_traffic, prefill_traffic
from benthic.plan.units import bytes_text, count_text, flops_text, percent_text, seconds_text, tokens_text
from benthic.plan.weights import PARTS


def report(plan: Plan) -> str:
    """The whole plan, ready to print."""
    costs = plan.sizing.costs
    lines = [
        f"{costs.name}: {count_text(costs.parameters)} parameters, {count_text(costs.active_parameters)} work on a "
        "token",
        "",
        *_weights(plan),
        "",
        *_computation(plan),
        "",
        *_state(plan),
    ]
    for machine in plan.machines:
        lines += ["", *_machine(machine)]
    for comparison in plan.comparisons:
        lines += ["", *_comparison(comparison)]
    lines += ["", "NOTES"]
    for note in notes(plan):
        lines += wrapped(note, first="  - ", rest="    ")
    return "\n".join(lines)


def _weights(plan: Plan) -> list[str]:
    sizing = plan.sizing
    rows = [["part", "parameters", "active", "bytes", "held in"]]
    for part in PARTS:
        items = sorted((item for item in sizing.held if item.part == part), key=lambda item: -item.num_bytes)
        if items:
            rows.append(
                [
                    part,
                    count_text(sum(item.parameters for item in items)),
                    count_text(sum(item.active_parameters for item in items)),
                    bytes_text(sum(item.num_bytes for item in items)),
                    ", ".join(dict.fromkeys(item.form for item in items)),
                ]
            )
    everything = sum(item.parameters for item in sizing.held)
    rows.append(["all", count_text(everything), "", bytes_text(sizing.weight_bytes), ""])
    return [f"1  WEIGHTS HELD ({sizing.formats.weights} formats)", *table(rows, left=1, last_left=True)]


def _computation(plan: Plan) -> list[str]:
    costs, contexts = plan.sizing.costs, plan.choices.contexts
    names = [tokens_text(context) for context in contexts]
    head = ["GFLOP of one token", "format", *(f"at {name}" for name in names), *(f"0-{name}" for name in names)]
    columns = [costs.decode(context) for context in contexts] + [costs.prefill(context) for context in contexts]
    rows = [head]
    for part, form in dict.fromkeys((work.part, work.form) for column in columns for work in column):
        cells = (total(work for work in column if (work.part, work.form) == (part, form)) for column in columns)
        rows.append([part, form, *map(_giga, cells)])
    rows.append(["all", "", *(_giga(total(column)) for column in columns)])
    rows.append(["all, FP8-equivalent", "", *(_giga(equivalent(column)) for column in columns)])
    return [
        "2  COMPUTATION (at N: the token that makes the context N; 0-N: the mean over a prompt of N)",
        *table(rows, left=2),
        "",
        *_traffic(plan, names),
    ]


def _traffic(plan: Plan, names: list[str]) -> list[str]:
    """Bytes of one token, weights shared among those of its pass."""
    sizing, choices = plan.sizing, plan.choices
    columns = [decode_traffic(sizing, context, choices.concurrency) for context in choices.contexts]
    columns += [prefill_traffic(sizing, context) for context in choices.contexts]
    head = f"bytes of one token, {choices.concurrency} decoded at once"
    rows = [[head, *(f"at {name}" for name in names), *(f"0-{name}" for name in names)]]
    for part in dict.fromkeys(part for column in columns for part in column):
        rows.append([part, *(bytes_text(column.get(part, 0.0)) for column in columns)])
    rows.append(["all", *(bytes_text(sum(column.values())) for column in columns)])
    return table(rows)


def _giga(flops: float) -> str:
    return f"{flops / 1e9:,.2f}" if flops < 1e11 else f"{flops / 1e9:,.1f}"


def _state(plan: Plan) -> list[str]:
    sizing, contexts = plan.sizing, plan.choices.contexts
    state = sizing.state
    rows = [["pool", "a token", "fixed", *(f"at {tokens_text(context)}" for context in contexts)]]
    for pool in state.pools():
        sizes = (pool.token_bytes * context + pool.fixed_bytes for context in contexts)
        growth = f"{pool.token_bytes:,.1f} B" if pool.token_bytes else ""
        fixed = bytes_text(pool.fixed_bytes) if pool.fixed_bytes else ""
        rows.append([pool.name, growth, fixed, *(bytes_text(size) for size in sizes)])
    totals = (bytes_text(state.conversation_bytes(context)) for context in contexts)
    rows.append(["a conversation", f"{state.token_bytes:,.1f} B", bytes_text(state.fixed_bytes), *totals])
    return [f"3  CONVERSATION STATE ({sizing.formats.cache})", *table(rows)]


def _machine(machine: MachinePlan) -> list[str]:
    first = machine.points[0]
    ceilings = machine.machine.ceilings(first.source)
    lines = [f"ON {machine.machine.name} ({_ceilings_text(ceilings)}; {machine.machine.source(first.source)})"]
    lines += table(list(_ways(machine)), left=1)
    lines += [*_least(machine), "", *table(list(_points(machine)), left=2), ""]
    for point in machine.points:
        lines += wrapped(point.words, first=f"  at {tokens_text(point.context)}: ", rest="    ")
    lines += _balance(machine.points[-1])
    lines += ["", f"  what else could be chosen, at {tokens_text(machine.points[-1].context)}"]
    width = max(len(change.choice) for change in machine.changes)
    for change in machine.changes:
        words = change.words(machine.points[-1])
        lines += wrapped(words, first=f"    {change.choice.ljust(width)}  ", rest=" " * (width + 6))
    return lines


def _ceilings_text(ceilings: Ceilings) -> str:
    rates = ", ".join(f"{name} {rate / 1e12:,.0f} TFLOP/s" for name, rate in ceilings.rates.items())
    return f"each {ceilings.bandwidth / 1e12:.2f} TB/s, {rates}, link {ceilings.link / 1e9:.0f} GB/s"


def _ways(machine: MachinePlan) -> Iterator[list[str]]:
    yield [
        "shared as",
        "weights a device",
        "left a device",
        *(f"fit at {tokens_text(p.context)}" for p in machine.points),
    ]
    for place, fit in enumerate(machine.points[-1].ways):
        counts = (point.ways[place].conversations for point in machine.points)
        left = bytes_text(fit.room_bytes) if fit.fits else "none"
        yield [fit.name, bytes_text(fit.weight_bytes), left, *(f"{count:,}" for count in counts)]


def _points(machine: MachinePlan) -> Iterator[list[str]]:
    yield [
        "context",
        "shared as",
        "running",
        "products",
        "weights",
        "state",
        "exchange",
        "step >=",
        "tokens/s <=",
        "prompt tokens/s <=",
    ]
    for point in machine.points:
        step, prompt = point.decode, point.prefill
        if step is None or prompt is None:
            yield [tokens_text(point.context), "none", "0", *[""] * 7]
            continue
        times = (step.products_s, step.weights_s, step.state_s, step.exchange_s, step.floor_s)
        yield [
            tokens_text(point.context),
            point.best_name,
            f"{step.conversations:,.0f}",
            *(seconds_text(time) for time in times),
            f"{point.tokens_per_s:,.0f}",
            f"{prompt.rows / prompt.floor_s:,.0f}",
        ]


def _least(machine: MachinePlan) -> list[str]:
    """The smallest group of such devices that holds the model and one conversation."""
    point = machine.points[-1]
    if point.least is None:
        return [f"  no group of up to {MOST_DEVICES} such devices holds it"]
    fit = point.least
    text = (
        f"the smallest group that holds the weights and a conversation of {tokens_text(point.context)} tokens: "
        f"{fit.name}, {bytes_text(fit.weight_bytes)} of weights on each of {fit.num_devices}"
    )
    return ["", *wrapped(text, first="  ", rest="    ")]


def _balance(point: Outcome) -> list[str]:
    found = point.balance
    if found is None:
        return []
    width = point.sizing.config.moe_intermediate_size
    verdict = "all of it hides" if found.hidden_share == 1 else f"it hides up to {found.hidden_share:.0%} of the rate"
    text = (
        f"experts' exchange over {point.machine.num_devices} devices: C/B is {found.compute_per_byte:,.0f} FLOP a "
        f"byte, the model offers {found.limit / width:g}d = {found.limit:,.0f}: {verdict}"
    )
    return wrapped(text, first="  ", rest="    ")


def _comparison(comparison: Comparison) -> list[str]:
    one, other = comparison.one, comparison.other
    rows = [["", one.name, other.name, "share"]]
    rows.append(["parameters", *_both(count_text, one.parameters, other.parameters)])
    rows.append(["active on a token", *_both(count_text, one.active_parameters, other.active_parameters)])
    rows.append(["state a token", *_both(_token_text, one.token_bytes, other.token_bytes)])
    mine, others = comparison.served_token_bytes
    if comparison.served_ratio is not None:
        served = (mine or one.token_bytes, others or other.token_bytes)
        rows.append(["state a token as served", *_both(_token_text, *served)])
    for at in comparison.contexts:
        where = tokens_text(at.context)
        rows.append([f"conversation of {where}", *_both(bytes_text, *at.conversation_bytes)])
        rows.append([f"decode at {where}", *_both(flops_text, *at.flops)])
        rows.append([f"decode at {where}, FP8-equivalent", *_both(flops_text, *at.equivalent_flops)])
    return [f"BESIDE {other.name}", *table(rows), *wrapped(_reduction(comparison), first="  ", rest="  ")]


def _both(text: Callable[[float], str], one: float, other: float) -> Sequence[str]:
    return text(one), text(other), percent_text(one / other)


def _token_text(count: float) -> str:
    return f"{count:,.0f} B"


def _reduction(comparison: Comparison) -> str:
    """`state 93.3 % smaller`, and whatever else the papers say in these words."""
    text = f"A token of conversation takes {_less(comparison.state_ratio)} {comparison.other.name}"
    if comparison.served_ratio is not None:
        text += f"; in the bits that were served, {_less(comparison.served_ratio)} it"
    return text + "."


def _less(ratio: float) -> str:
    return f"{100 * (1 - ratio):.1f} % less than in" if ratio <= 1 else f"{ratio:.2f} times as much as in"
