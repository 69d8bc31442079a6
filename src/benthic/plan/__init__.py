"""What a model will cost: weights held, computation a token, conversation state, on which machine."""

from benthic.plan.hardware import DEVICES, Device, Machine, parse_machine, source_named
from benthic.plan.plan import Choices, Plan, default_contexts, plan
from benthic.plan.record import record
from benthic.plan.report import report
from benthic.plan.sizing import Formats, formats_for
from benthic.plan.subject import Subject, subject

__all__ = [
    "Choices",
    "DEVICES",
    "Device",
    "Formats",
    "Machine",
    "Plan",
    "Subject",
    "default_contexts",
    "formats_for",
    "parse_machine",
    "plan",
    "record",
    "report",
    "source_named",
    "subject",
]
