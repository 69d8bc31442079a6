"""Where a model is built and in which numbers: what a caller may ask for, checked before anything is loaded."""

import torch

from benthic.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def chosen_device(device: torch.device | str | None) -> torch.device:
    """The device asked for; None takes CUDA where there is one, else CPU.

    Raises:
        ConfigError: it is no device, none that Benthic runs on, or not in this machine.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        place = torch.device("meta")
    if place.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {_shown(device)}; it must be cpu, cuda or cuda:N")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device is {_shown(device)}; this machine has {torch.cuda.device_count()} CUDA devices")
    return place


def chosen_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype of activations asked for, by name or itself; None stays None.

    Raises:
        ConfigError: activations cannot have it.
    """
    if dtype is None:
        return None
    found = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found not in _DTYPES.values():
        raise ConfigError(f"dtype is {_shown(dtype)}; it must be one of {', '.join(_DTYPES)}")
    return found


def _shown(value: object) -> str:
    return str(value) if isinstance(value, torch.device | torch.dtype) else repr(value)
