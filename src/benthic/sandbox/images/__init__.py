"""Images: content-addressed layers, kept once a host and mounted once, however many sandboxes stand on them."""

from benthic.sandbox.images.chosen import chosen_layers
from benthic.sandbox.images.image import Image, ImageConfig
from benthic.sandbox.images.layer import Layer
from benthic.sandbox.images.python import PYTHON, ensure_python
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.tiny import TINY, ensure_tiny

__all__ = ["Image", "ImageConfig", "Layer", "PYTHON", "Store", "TINY", "chosen_layers", "ensure_python", "ensure_tiny"]
