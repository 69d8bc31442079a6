"""The floor: transformers' own V4, eager and in bfloat16, at the same layers, prefill and decode.

    python benchmarks/model/bench_transformers.py --rows 1 32 --context 4096

Three layers, one of each kind, of random weights on one GPU; 43 layers are estimated as 43 / 3 of them. Its cache keeps
every key of the window layers, so contexts are short here; nothing of it is captured or fused.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from world import IN_FLASH, flash_layers

REPEATS = 5


def main() -> None:
    """Builds the model on the device and times both kinds of passes."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    arguments.add_argument("--context", type=int, default=4096)
    arguments.add_argument("--device", default="cuda")
    options = arguments.parse_args()
    ours = replace(flash_layers(list(IN_FLASH)), vocab_size=4096)
    sizes = ours.to_json(weights="fp32")
    sizes.pop("quantization_config", None)
    model = random_model(DeepseekV4Config(**sizes), torch.device(options.device))
    layers, all_layers = len(ours.layers), sum(IN_FLASH.values())
    print(f"# transformers, eager, bfloat16, {layers} layers; estimates for {all_layers}")
    with torch.inference_mode():
        for rows in options.rows:
            ids = torch.randint(ours.vocab_size, (rows, options.context), device=options.device)
            prefill_s, cache = timed(lambda ids=ids: model(ids, use_cache=True, logits_to_keep=1).past_key_values, 1)
            step_s, _ = timed(lambda ids=ids, cache=cache: model(ids[:, :1], past_key_values=cache, use_cache=True))
            scale = all_layers / layers
            print(
                f"{rows:4d} x {options.context}: prefill {prefill_s * 1e3:9.1f} ms, decode {step_s * 1e3:8.1f} ms; "
                f"whole model {prefill_s * scale * 1e3:9.1f} ms and {step_s * scale * 1e3:8.1f} ms"
            )


def random_model(config: DeepseekV4Config, device: torch.device) -> DeepseekV4ForCausalLM:
    """Drawn on the device: the library's own initial values take minutes."""
    with torch.device("meta"):
        model = DeepseekV4ForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.bfloat16)
    model = model.to_empty(device=device).eval()
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            rotary = type(module)(config, device=device)
            module.load_state_dict(rotary.state_dict())
            for name, buffer in rotary.named_buffers():
                module.register_buffer(name, buffer, persistent=False)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and "inv_freq" not in name:
            torch.nn.init.normal_(tensor, std=0.02)
        elif not tensor.is_floating_point():
            tensor.zero_()
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
