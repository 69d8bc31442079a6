"""Ways to make sandboxes, each behind the protocols of `driver.py`."""
