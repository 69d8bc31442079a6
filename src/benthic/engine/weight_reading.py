"""Looking at one tensor of the weights in force, for whoever wants to know that an update has arrived."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from benthic.errors import RequestError, shown

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class WeightValues:
    """A tensor's name, kind and first values, row by row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: tuple[float, ...]


def read_weight(state: "Mapping[str, Tensor]", name: str, max_values: int) -> WeightValues:
    """The tensor of that name.

    Raises:
        RequestError: there is none.
    """
    if name not in state:
        near = get_close_matches(name, state, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"such as {next(iter(state))}"
        raise RequestError(f"name is {shown(name)}; it must be that of a tensor of the model; {hint}", param="name")
    tensor = state[name].detach()
    values = tensor.reshape(-1)[:max_values].float().tolist()
    return WeightValues(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(values))
