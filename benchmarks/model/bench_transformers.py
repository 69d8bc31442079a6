"""The floor: transformers' own V4, eager and in bfloat16, at the same layers, prefill and decode.

    python benchmarks/model/bench_transformers.py --rows 1 32 --context 4096

Three layers, one of each kind, of random weights on one GPU; 43 layers are estimated as 43 / 3 of them. Nothing of it
is captured or fused. One prompt is computed, and its cache repeated for as many rows as decode: eager attention holds
all scores of a prompt at once, which of 32 prompts fit no GPU.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch
from measure import gpu_name, positive
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from world import IN_FLASH, flash_layers

REPEATS = 5


def main() -> None:
    """Builds the model on the device and times both kinds of passes."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=positive, nargs="+", default=[1, 32])
    arguments.add_argument("--context", type=positive, default=4096)
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options = arguments.parse_args()
    device_name = gpu_name() if options.device == "cuda" else "cpu"
    ours = replace(flash_layers(list(IN_FLASH)), vocab_size=4096)
    sizes = ours.to_json(weights="fp32")
    sizes.pop("quantization_config", None)
    model = random_model(DeepseekV4Config(**sizes), torch.device(options.device))
    layers, all_layers = len(ours.layers), sum(IN_FLASH.values())
    print(f"# {device_name}, transformers, eager, bfloat16, {layers} layers; estimates for {all_layers}")
    with torch.inference_mode():
        ids = torch.randint(ours.vocab_size, (1, options.context), device=options.device)
        prefill_s, _ = timed(lambda: model(ids, use_cache=True, logits_to_keep=1))
        scale = all_layers / layers
        print(f"prefill 1 x {options.context}: {prefill_s * 1e3:.1f} ms; whole model {prefill_s * scale * 1e3:.1f} ms")
        for rows in options.rows:
            cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
            cache.reorder_cache(torch.zeros(rows, dtype=torch.int64, device=options.device))
            newest = torch.randint(ours.vocab_size, (rows, 1), device=options.device)
            step_s, step = timed(
                lambda cache=cache, newest=newest: model(newest, past_key_values=cache, use_cache=True)
            )
            assert torch.isfinite(step.logits).all(), "rows of NaN all go to the same experts"
            print(
                f"decode {rows} x {options.context}: {step_s * 1e3:.1f} ms; whole model {step_s * scale * 1e3:.1f} ms, "
                f"{rows / (step_s * scale):.0f} tokens/s"
            )


def random_model(config: DeepseekV4Config, device: torch.device) -> DeepseekV4ForCausalLM:
    """Drawn on the device: the library's own initial values take minutes."""
    with torch.device("meta"):
        model = DeepseekV4ForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.bfloat16)
    model = model.to_empty(device=device).eval()
    for module in model.modules():
        if any("inv_freq" in name for name, _ in module.named_buffers(recurse=False)):
            rotary = type(module)(config, device=device)
            module.load_state_dict(rotary.state_dict())
            for name, buffer in rotary.named_buffers():
                module.register_buffer(name, buffer, persistent=False)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and "inv_freq" not in name:
            torch.nn.init.normal_(tensor, std=0.02)
        elif not tensor.is_floating_point():
            # The experts of each token where a layer routes by hash: of different ones, as the released tables have.
            tensor.random_(config.n_routed_experts)
    return model


def timed(call, repeats: int = REPEATS):
    """Seconds of a call (median), and its last result."""
    result = call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


if __name__ == "__main__":
    main()
