"""Which layers route rows to experts, how they choose, and on which device each expert lives."""

from dataclasses import dataclass

from torch import Tensor

from benthic.errors import ConfigError
from benthic.kernels.moe_route import Score
from benthic.models.config import ModelConfig, Routing


@dataclass(frozen=True, slots=True)
class ExpertMap:
    """The experts of a model, spread over `num_devices` devices in equal runs: device d holds experts d E/D and on.

    `routing` says for each layer with routed experts (main layers, then MTP blocks) how it chooses. Training on one
    machine may assume any number of devices: losses, dropping and statistics then are those of that many.
    """

    routing: dict[int, Routing]
    num_experts: int
    top_k: int
    score: Score
    num_devices: int
    max_devices: int
    """Devices that a row may be sent to at most (M of the V2 report)."""

    @property
    def experts_per_device(self) -> int:
        """E / D."""
        return self.num_experts // self.num_devices

    def device_of(self, experts: Tensor) -> Tensor:
        """Numbers of experts -> numbers of their devices."""
        return experts.div(self.experts_per_device, rounding_mode="floor")


def map_experts(config: ModelConfig, num_devices: int = 0) -> ExpertMap:
    """The experts of a model on `num_devices` devices; 0: one device for each group of the gate.

    Raises ConfigError when the experts cannot be spread evenly.
    """
    devices = num_devices or config.n_group
    if config.n_routed_experts % devices:
        raise ConfigError(f"num_devices ({devices}) must divide the number of experts ({config.n_routed_experts})")
    reachable = config.topk_group * -(-devices // config.n_group)
    return ExpertMap(
        routing={
            layer: spec.routing
            for layer, spec in enumerate((*config.layers, *config.mtp_layers))
            if spec.mlp == "experts"
        },
        num_experts=config.n_routed_experts,
        top_k=config.num_experts_per_tok,
        score=config.scoring_func,
        num_devices=devices,
        max_devices=min(config.num_experts_per_tok, devices, reachable),
    )
