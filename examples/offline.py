"""The bundled model in this process, without a server: `python examples/offline.py`."""

import benthic

PROMPT = "The Benthic project is"

with benthic.LLM("tiny") as llm:
    params = benthic.SamplingParams(max_tokens=24, temperature=0, logprobs=1)
    [answer] = llm.generate([PROMPT], params)
    print(PROMPT + answer.outputs[0].text)
    # What the engine sampled from is what the training path computes, bit for bit.
    scores = llm.score([*answer.prompt_token_ids, *answer.outputs[0].token_ids])
    print(scores[-len(answer.outputs[0].token_ids) :].tolist() == answer.outputs[0].logprobs)
