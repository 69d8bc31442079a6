"""What the bundled model is taught and examined in: generators, their rendering, grading and evaluation. No torch."""

from benthic.tasks.example import Example, ExampleEncoder
from benthic.tasks.stream import ExampleStream

__all__ = ["Example", "ExampleEncoder", "ExampleStream"]
