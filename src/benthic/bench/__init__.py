"""Measurements: workloads, a load generator, reports and figures, for `benthic bench`."""
