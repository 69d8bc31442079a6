"""The bundled model in this process, without a server: `python examples/offline.py`."""

import benthic
from benthic.text.prompt import PromptEncoder

QUESTION = {"messages": [{"role": "user", "content": "What is 347 + 285?"}], "enable_thinking": True}

with benthic.LLM("tiny") as llm:
    prompt = PromptEncoder(llm.tokenizer, context_len=llm.max_model_len).encode("chat", QUESTION)
    params = benthic.SamplingParams(max_tokens=200, temperature=0, logprobs=1)
    [answer] = llm.generate([prompt.token_ids], params)
    print(answer.outputs[0].text)
    # What the engine sampled from is what the training path computes, bit for bit.
    scores = llm.score([*answer.prompt_token_ids, *answer.outputs[0].token_ids])
    print(scores[-len(answer.outputs[0].token_ids) :].tolist() == answer.outputs[0].logprobs)
