"""Whether a model's files are whole, and whether it fits into the memory of this machine."""

from benthic.doctor.finding import Finding

GIB = 1 << 30
_WIDE_BYTES = 4
"""A parameter on CPU, in float32; on CUDA it takes two."""


def model_findings(model: str) -> list[Finding]:
    """The files, then the room.

    Raises:
        BenthicError: there is no such model.
    """
    from benthic.models.checkpoint import inspect

    found = inspect(model)
    return [
        judge_files(found.name, found.is_whole, found.num_tensors, found.num_bytes),
        judge_room(found.parameters, *_room()),
    ]


def judge_files(name: str, is_whole: bool, num_tensors: int, num_bytes: int) -> Finding:
    """Nothing is missing, unknown or misshapen."""
    if not is_whole:
        return Finding(
            "model", "broken", f"{name}: its files are not whole", f"`benthic inspect {name}` says what is wrong"
        )
    return Finding("model", "ok", f"{name}: {num_tensors:,} tensors, {num_bytes / GIB:.2f} GiB")


def judge_room(parameters: int, device: str, available: int) -> Finding:
    """Weights in the activations' dtype beside a cache."""
    size = _WIDE_BYTES if device == "cpu" else 2
    needed = parameters * size
    found = f"{needed / GIB:.2f} GiB of weights, {available / GIB:.1f} GiB available on {device}"
    if needed > available:
        remedy = "use a machine with more (`benthic plan` computes one)"
        native = ", or --engine.weights native: a quarter of the bytes" if device != "cpu" else ""
        return Finding("room", "broken", found, remedy + native)
    if needed > available // 2:
        return Finding("room", "limit", found, "little is left for the cache: fewer requests run at once")
    return Finding("room", "ok", found)


def _room() -> tuple[str, int]:
    import torch

    from benthic.cache.memory import available_bytes

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return device, available_bytes(torch.device(device))
