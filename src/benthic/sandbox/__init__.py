"""Sandboxes for agents: four substrates behind one interface, and a log that survives everything. No torch."""

from benthic.sandbox.records import Command, Limits, Network, Reason, Result, SandboxSpec, State

__all__ = ["Command", "Limits", "Network", "Reason", "Result", "SandboxSpec", "State"]
