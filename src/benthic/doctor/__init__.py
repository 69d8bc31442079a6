"""What works on this machine, what limits it, and how to mend it: the library behind `benthic doctor`."""

from benthic.doctor.examine import examine
from benthic.doctor.finding import Finding, Verdict, worst

__all__ = ["Finding", "Verdict", "examine", "worst"]
