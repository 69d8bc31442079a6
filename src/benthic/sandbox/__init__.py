"""Sandboxes for agents: four substrates behind one interface, and a log that survives everything. No torch."""

__all__: list[str] = []
