"""Sandboxes and tasks in the words of other libraries, each an optional extra; import the module of the one in use."""
