"""What becomes of a request that the engine did not take."""

import pytest

from benthic.engine.handle import refusal
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.errors import CapacityError, EngineError, RequestError, WeightsLostError


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RequestError, "request"), (CapacityError, "capacity"), (EngineError, "engine"), (WeightsLostError, "engine")],
)
def test_an_error_keeps_whose_fault_it_was_also_as_one_of_its_kind(error, kind):
    request = Request(request_id="a", prompt_ids=(1, 2), params=SamplingParams(max_tokens=1))
    output = refusal(request, error("no"))
    assert (output.error_kind, output.finish_reason, output.error) == (kind, "error", "no")
