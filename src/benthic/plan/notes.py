"""What the figures of a plan assume, in words: printed below the tables and kept in the JSON."""

from benthic.plan.plan import Plan
from benthic.plan.state import PASS_ROWS

GENERAL = (
    "GB are 10^9 bytes. A multiply and its add are two operations. Parameters leave MTP blocks out; active ones also "
    "the embedding.",
    "FP8-equivalent: an operation weighs 1 in FP8, 0.5 in FP4, 2 in bf16, 4 in fp32. Products with weights count in "
    "the format in which the matrix is held (FP4 experts as FP8: their activations are FP8), attention in bf16, index "
    "scores in the format of indexer keys.",
    "A decode figure is of the last token of the context; a prompt's is the mean over all its positions.",
    "Experts are taken as equally likely. Products only: softmax, norms, rotations and Sinkhorn steps are left out.",
    "A floor is the largest of products, bytes and exchange at the ceilings, each as if the others cost nothing.",
)


def notes(plan: Plan) -> tuple[str, ...]:
    """Those that the plan's model and machines call for."""
    sizing, choices = plan.sizing, plan.choices
    found = list(GENERAL)
    found.append(
        f"Room: nine tenths of what the weights leave, less attention's temporaries for passes of {PASS_ROWS} rows, as "
        "the engine reckons; what a pass takes beyond them is measured at start-up and not known here."
    )
    found.append(
        "Weights are sized as files hold them. The engine widens matrices to the activations' dtype when it loads: "
        "plan --dtype bf16 for that."
    )
    if sizing.subject.config.num_nextn_predict_layers and choices.formats.draft == "none":
        found.append(
            "MTP blocks are left out. The engine loads those that the files hold, drafting or not: plan --draft mtp "
            "for what they take."
        )
    if sizing.config.is_latent:
        found.append(
            "Latent attention is counted in the absorbed form, in prompts too, as this engine runs it; the expanded "
            f"form of a prompt takes {_expanded_share(plan):.0%} of its attention core."
        )
    limit = sizing.costs.max_context
    beyond = sorted({context for context in choices.contexts if context > limit})
    if beyond:
        lengths = ", ".join(f"{context:,}" for context in beyond)
        found.append(
            f"{sizing.costs.name} was made for {limit:,} tokens, and the context is {lengths}: figures beyond are the "
            "same formulas, and the engine refuses such a length."
        )
    for comparison in plan.comparisons:
        if any(context > comparison.other.max_context for context in choices.contexts):
            found.append(
                f"{comparison.other.name} was made for {comparison.other.max_context:,} tokens; figures beyond are the "
                "same formulas."
            )
    return tuple(found)


def _expanded_share(plan: Plan) -> float:
    config = plan.sizing.config
    expanded = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    return expanded / (config.entry_dim + config.value_dim)
