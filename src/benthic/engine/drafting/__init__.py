"""Tokens guessed ahead: who guesses them (`Drafter`), and how many are worth verifying (`DepthPolicy`)."""

from benthic.engine.drafting.depth import DepthPolicy
from benthic.engine.drafting.mtp import MtpDrafter
from benthic.engine.drafting.ngram import NgramDrafter
from benthic.engine.drafting.none import NoDrafter
from benthic.engine.drafting.protocol import ComputedPass, Drafter

__all__ = ["ComputedPass", "DepthPolicy", "Drafter", "MtpDrafter", "NgramDrafter", "NoDrafter"]
