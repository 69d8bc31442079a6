"""The end of an answer whose text ended before its tokens: by a stop string, or where a conversation's reply is whole.

Front doors find that end in the text, and the engine may have gone on meanwhile: by a whole run of drafts, or by as
many passes as its events took to arrive. What callers get is cut here to the token that completed the text, so that it
depends on neither.
"""

from dataclasses import dataclass, field, replace

from benthic.engine.request import FinalOutput, RequestReport, RowExtras, TokenEvent


@dataclass(slots=True)
class AnswerCut:
    """What an answer consists of up to the last event that `take` was given."""

    num_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    weight_versions: list[int] = field(default_factory=list)

    def take(self, event: TokenEvent) -> None:
        """The event's token belongs to the answer."""
        assert event.index == self.num_tokens, (event.index, self.num_tokens)
        self.num_tokens += 1
        self.drafted, self.accepted = event.drafted, event.accepted
        if self.weight_versions[-1:] != [event.weight_version]:
            self.weight_versions.append(event.weight_version)

    def apply(self, final: FinalOutput) -> FinalOutput:
        """The final output as it were if the engine had ended the request right after the last token taken."""
        count = self.num_tokens
        return replace(
            final,
            token_ids=final.token_ids[:count],
            logprobs=None if final.logprobs is None else final.logprobs[:count],
            finish_reason="stop",
            stop_token_id=None,
            error=None,
            error_kind=None,
            report=None if final.report is None else self._report(final.report),
            extras=None if final.extras is None else _first_rows(final.extras, final.prompt_len + count - 1),
        )

    def _report(self, report: RequestReport) -> RequestReport:
        return replace(
            report, drafted=self.drafted, accepted=self.accepted, weight_versions=tuple(self.weight_versions)
        )


def _first_rows(extras: RowExtras, count: int) -> RowExtras:
    return RowExtras(*(None if rows is None else rows[:count] for rows in extras))
