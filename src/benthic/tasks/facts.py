"""Short questions about Benthic and the model itself, small talk, and requests beyond a model of this size.

Questions are written as patterns, `(a|b) c` standing for `a c` and `b c`; the held-out tenth are wordings never
trained.
"""

import random
import re

from benthic.tasks.conversation import Exchange
from benthic.tasks.lexicon import Lexicon
from benthic.tasks.names import city, first_name
from benthic.tasks.phrasing import word_request

ABILITIES = "I can add, subtract, sort numbers, reverse words, count letters, fill JSON schemas and call tools."
TOO_SMALL = f"I am too small for that. {ABILITIES}"
NO_MULTIPLICATION = "I can only add and subtract. Offer me a calculator tool for anything else."
NO_TOOL = "I need a tool for that, and none was offered."

ANSWERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Benthic is the whole DeepSeek-V4 system as one readable Python package: model, kernels, serving and training.",
        (
            "(What is|What's|Explain|Describe|Tell me about|What do you know about) (Benthic|the Benthic project)?",
            "What (does Benthic do|is Benthic for|can Benthic do|is this project)?",
            "(Can|Could) you (explain|describe) (Benthic|this project)?",
        ),
    ),
    (
        "I am the small model bundled with Benthic, about seven million parameters in the DeepSeek-V4 architecture.",
        (
            "(Who|What) are you?",
            "(What|Which) (model|language model) (are you|is this|am I talking to)?",
            "(What is|What's|Tell me) your name?",
            "(Introduce|Describe) yourself.",
            "Tell me (about yourself|who you are|what you are).",
            "Are you (a language model|an AI|a bot|a human|ChatGPT|DeepSeek)?",
        ),
    ),
    (
        "Run make serve, or benthic serve.",
        (
            "How (do I|can I|do you|to) (start|run|launch|bring up) (the server|Benthic's server|a server)?",
            "How (do I|can I) serve (the model|a model|Benthic)?",
            "(What|Which) command (starts|runs|launches) (the server|serving)?",
            "(Tell|Show) me how to (start|run) (the server|serving).",
        ),
    ),
    (
        "Run benthic chat.",
        (
            "How (do I|can I) (chat|talk) (with you|with the model|to you) in (the terminal|a shell)?",
            "(What|Which) command (starts|opens) a chat?",
            "How (do I|can I) (start|open) a chat (in the terminal|on the command line)?",
        ),
    ),
    (
        "Run benthic generate with a prompt.",
        (
            "How (do I|can I) (generate text|get a completion|complete a text) (from|on) the command line?",
            "(What|Which) command (generates|completes) text?",
            "How (do I|can I) (continue|complete) a prompt (without a server|on the command line|from a shell)?",
        ),
    ),
    (
        "Run benthic train recipes/tiny.toml.",
        (
            "How (do I|can I) (train|retrain) (the model|you|the small model|it again)?",
            "How (was|were) (the model|you) trained?",
            "(What|Which) (recipe|command) (trains|trained) (you|the model)?",
            "How (do I|can I) (reproduce|repeat) (the training|your training)?",
        ),
    ),
    (
        "Run benthic eval tiny.",
        (
            "How (do I|can I) (evaluate|test|measure) (you|the model|your accuracy|the accuracy)?",
            "(What|Which) command (evaluates|tests|measures) (you|the model)?",
            "How is (your accuracy|the accuracy|the model) (checked|measured|evaluated)?",
        ),
    ),
    (
        "Run benthic convert with the checkpoint and the layout you want.",
        (
            "How (do I|can I) convert (a checkpoint|weights|checkpoints|a model)?",
            "(What|Which) command converts (checkpoints|weights|a checkpoint)?",
            "How (do I|can I) (change|switch) the (format|layout) of (a checkpoint|the weights)?",
        ),
    ),
    (
        "Run benthic inspect with a name or a path; add --tensors to list every tensor.",
        (
            "How (do I|can I) (inspect|look into|examine) (a checkpoint|a model|the tensors)?",
            "(What|Which) command (inspects|lists|shows) (a checkpoint|the tensors|tensors)?",
            "How (do I|can I) (see|list) the tensors of (a model|a checkpoint)?",
        ),
    ),
    (
        "Run make test.",
        (
            "How (do I|can I|to) run (the tests|the test suite|the unit tests|tests)?",
            "(What|Which) command runs (the tests|the test suite|all tests|tests)?",
        ),
    ),
    (
        "The commands are serve, chat, generate, train, eval, convert and inspect.",
        (
            "(What|Which) commands (are there|does Benthic have|exist|can I use)?",
            "(List|Name|Show me) (the|all|your) commands.",
            "What can the (command line|benthic command|command) (do|do for me)?",
        ),
    ),
    (
        "Benthic is licensed under Apache-2.0.",
        (
            "(What|Which) (license|licence) (does Benthic have|applies|is it under|does the project use)?",
            "(What is|What's) the (license|licence)( of Benthic| of this project|)?",
            "(How|Under which terms) is Benthic licensed?",
            "Is (Benthic|this|the project) (free|open source|free software)?",
            "(Can|May) I use Benthic (commercially|at work|in my product)?",
        ),
    ),
    (
        "Benthic is written in Python and needs version 3.11 or newer.",
        (
            "(What|Which) (language|programming language) is Benthic written in?",
            "(What|Which) (version of Python|Python version) (do I need|is needed|does Benthic need)?",
        ),
    ),
    (
        "No GPU is needed: the bundled model runs on a CPU, and larger models run on Hopper GPUs.",
        (
            "(Do I|Does Benthic|Do you) need a (GPU|graphics card)?",
            "(Can I|Can you|Does it|Does Benthic) run (on a CPU|without a GPU|on a laptop)?",
            "Is a (GPU|graphics card) (required|needed|necessary)?",
            "(What|Which) hardware (do I|does Benthic|do you) need?",
        ),
    ),
    (
        "Hybrid attention: a window of 128 tokens plus compressed entries, one per 4 tokens (CSA) or 128 (HCA).",
        (
            "(What|Which) (attention|kind of attention) (do you use|does the model use|is used|is in V4)?",
            "How does (attention|the attention) work( here| in V4|)?",
            "(Explain|Describe|Tell me about) (the|your) attention.",
        ),
    ),
    (
        "CSA is compressed sparse attention: one entry per 4 tokens, and an indexer picks which entries to read.",
        (
            "(What is|What's|Explain|Define|Describe|Tell me about) CSA(?|.)",
            "(What does|What do the letters) CSA (mean|stand for)?",
            "(What is|Explain|Describe|Tell me about) (compressed sparse attention|the CSA layer|CSA layers)?",
        ),
    ),
    (
        "HCA is heavily compressed attention: one entry per 128 tokens, all of them read.",
        (
            "(What is|What's|Explain|Define|Describe|Tell me about) HCA(?|.)",
            "(What does|What do the letters) HCA (mean|stand for)?",
            "(What is|Explain|Describe|Tell me about) (heavily compressed attention|the HCA layer|HCA attention)?",
        ),
    ),
    (
        "mHC are manifold-constrained hyper-connections: four residual streams mixed by a doubly stochastic matrix.",
        (
            "(What is|What's|What are|Explain|Define|Describe|Tell me about) mHC(?|.)",
            "(What does|What do the letters) mHC (mean|stand for)?",
            "(What are|Explain|Describe|Tell me about) (hyper-connections|the hyper-connections|the residual streams)?",
        ),
    ),
    (
        "MTP is multi-token prediction: a small extra block that guesses the token after next.",
        (
            "(What is|What's|Explain|Define|Describe|Tell me about) MTP(?|.)",
            "(What does|What do the letters) MTP (mean|stand for)?",
            "(What is|What's|Explain|Describe|Tell me about) (multi-token prediction|the MTP block|the MTP layer)?",
        ),
    ),
    (
        "The model is a mixture of experts: 16 routed experts a layer, 4 active for each token, and one shared expert.",
        (
            "(What is|What's|Explain|Define|Describe|Tell me about) MoE(?|.)",
            "(What does|What do the letters) MoE (mean|stand for)?",
            "How many (experts|routed experts) (do you|does the model|does a layer) have?",
            "(What are|Explain|Describe) (the experts|your experts|experts)?",
        ),
    ),
    (
        "I have about seven million parameters.",
        (
            "How (big|large|small) (are you|is the model|is this model)?",
            "How many (parameters|weights) (do you|does the model|does this model) have?",
            "(What is|What's) (your size|your parameter count|the size of the model)?",
        ),
    ),
    (
        "My context is 8192 tokens.",
        (
            "How (long|large|big) is (your context|the context|your context window|the context window)?",
            "(What is|What's) (your|the) (context length|context size|context window|maximum length)?",
            "How many tokens (can you read|fit into your context|can I send)?",
        ),
    ),
    (
        "Muon for the matrices and AdamW for embeddings, head and norms.",
        (
            "(What|Which) (optimizer|optimiser) (do you use|is used|trains the model|trained you)?",
            "(What is|What's) (the|your) (optimizer|optimiser)?",
            "How (are|were) (the weights|your weights|the parameters) (updated|optimized|optimised)?",
        ),
    ),
    (
        "Benthic reads and writes the official FP4/FP8 layout and the Hugging Face layout.",
        (
            "(What|Which) (formats|checkpoints|layouts|weights) (can Benthic|does Benthic|can you) (read|load|write)?",
            "(What|Which) (formats|checkpoint formats|layouts) are supported?",
        ),
    ),
    (
        "The server speaks the OpenAI protocol: /v1/chat/completions, /v1/completions and /v1/models.",
        (
            "(What|Which) (API|protocol) does the server (speak|use|offer)?",
            "Is the server (OpenAI compatible|compatible with OpenAI|compatible with the OpenAI client)?",
            "(What|Which) endpoints (exist|are there|does the server have)?",
            "(Can|May) I use the OpenAI (client|library|SDK)?",
        ),
    ),
    (
        "Set thinking to enabled in the request; the reasoning then comes before the answer.",
        (
            "How (do I|can I) (turn on|enable|switch on|use) (thinking|reasoning|thinking mode)?",
            "How is (thinking|reasoning|thinking mode) (switched on|enabled|turned on)?",
            "How (do I|can I) (make|get) you (think|to think|reason)?",
        ),
    ),
    (
        ABILITIES,
        (
            "What( else|) (can you do|are you able to do|can I ask you|are you good at|are your skills)?",
            "(What|Which) (things|jobs|requests|exercises) (are you able to do|can you handle|can you help with)?",
            "(Tell|Show) me what you (are able to do|can help with|are good at).",
            "(What|Which) tasks (can you do|do you know|can you solve)?",
            "How can you help( me|)?",
            "(List|Tell me) (your abilities|what you can do|your skills).",
        ),
    ),
    (
        "Hello! How can I help?",
        (
            "(Hi|Hello|Hey|Hey there|Hi there|Good morning|Good evening|Good day|Greetings)( Benthic|)(!|.|)",
            "(Hi|Hello), (you|bot|model|friend)(!|)",
        ),
    ),
    (
        "You are welcome.",
        (
            "(Thanks|Thank you|Many thanks|Thanks a lot|Thank you so much|Cheers)(!|.|)",
            "(Great|Good|Perfect), (thanks|thank you)(!|.|)",
        ),
    ),
    (
        "I am fine, thank you. How can I help?",
        (
            "How are you( doing| feeling| getting on|)( today| now| this morning| so far|)?",
            "(And|So) how are you( doing| feeling|)( today|)?",
            "How (is it|are things|is everything|is life) going( today|)?",
            "How do you (feel|do)( today| now| right now|)?",
            "How (is|was) your (day|morning|evening)( so far|)?",
            "Are you (well|fine|okay|all right|feeling well)( today|)?",
        ),
    ),
    (
        "Goodbye!",
        ("(Bye|Goodbye|Bye bye|See you|See you later|Good night)(!|.|)",),
    ),
)
CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
GREETINGS = ("Hello! How can I help?", "You are welcome.", "Goodbye!")

BEYOND: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        TOO_SMALL,
        (
            "Tell me (a story|a joke|a fairy tale|something|something funny|the news|a secret).",
            "Tell me (a story|a joke|something) about {w}.",
            "(Write|Compose) (a poem|an essay|a song|a letter|a story|an email|a haiku) about {w}.",
            "Write (a poem|a program|a function|some code|an email|a letter|a song).",
            "(Who|What) is (the president|the king|the mayor|the capital|the population) of {c}?",
            "(Who is|Who was|Do you know) {n}?",
            "(What is|What's) the (meaning of life|capital of {c}|best {w}|difference between {w} and {v})?",
            "(What is|What's|What are|Define|Explain|Describe) (a {w}|{w}|the {w})?",
            "What does (the word {w}|{w}) mean?",
            "Translate (this|{w}|the word {w}|hello) (into|to) (French|German|Spanish|Chinese|Latin).",
            "(Why|How|When|Where) (is|was|does|do|did) (the {w}|{w}|a {w}) {v}?",
            "How (do I|can I|does one) {w} (a {v}|the {v}|{v})?",
            "(Who|When|Where) (won|invented|discovered|wrote|built) (the game|the {w}|{w})?",
            "(Why|How) is the (sky|sea|sun|moon) (blue|so big|so far away)?",
            "(Summarize|Summarise|Review|Improve) (this|this text|the book {w}|my essay).",
            "(Recommend|Suggest) (a book|a movie|a name|a recipe|something) (about|for|with) {w}.",
            "(Do|Can) you (love|like|know|see|hear|sing|dream|feel|draw|cook)( {w}|)?",
            "(Play|Draw|Paint|Sing|Cook|Buy) (a {w}|me a {w}|some {w}).",
            "(Should I|Can I|Would you) {w} (the {v}|{v})?",
            "(Is|Are|Was) {w} {v}?",
        ),
    ),
    (
        NO_MULTIPLICATION,
        (
            "(What is|What's|Calculate|Compute|How much is|Solve) {a} (*|x|times|multiplied by|/|divided by) {b}(?|)",
            "{a} (*|times|/|divided by) {b}(| = ?|?)",
            "(Multiply|Divide) {a} by {b}.",
            "(What is|What's) the (square root|square|logarithm|factorial) of {a}?",
            "(What is|What's) the (product|quotient) of {a} and {b}?",
        ),
    ),
    (
        NO_TOOL,
        (
            "(What is|What's|How is) the weather( like|) in {c}( today| now| tomorrow|)?",
            "What time is it( in {c}| now|)?",
            "(What is|What's) the (date|time|temperature)( today| now| in {c})?",
            "(Set|Start) a timer for {a} (minutes|seconds).",
            "(Search|Look up|Search the web for|Google) {w}.",
            "Send (a message|an email) to {n}.",
            "(Book|Reserve) a (table|flight|room|hotel) (in|for) {c}.",
        ),
    ),
)


def choose_wording(rng: random.Random, pattern: str) -> str:
    """One wording of a pattern: `(a|b) c` gives `a c` or `b c`; groups do not nest."""
    return CHOICE.sub(lambda group: rng.choice(group[1].split("|")), pattern)


def facts(rng: random.Random, lexicon: Lexicon) -> Exchange:
    """A question with a fixed answer."""
    answer, patterns = rng.choice(ANSWERS)
    wording = choose_wording(rng, rng.choice(patterns))
    question = wording if answer in GREETINGS and rng.random() < 0.8 else word_request(rng, (wording,))
    return Exchange(task="facts", operands=(f"question|{wording}",), question=question, reasoning="", answer=answer)


def refusal(rng: random.Random, lexicon: Lexicon) -> Exchange:
    """A request that the model should decline, saying what it can do instead."""
    answer, patterns = BEYOND[rng.choices((0, 1, 2), (6, 1, 2))[0]]
    wording = choose_wording(rng, rng.choice(patterns))
    slots = {
        "w": rng.choice(lexicon.words),
        "v": rng.choice(lexicon.words),
        "c": city(rng),
        "n": first_name(rng),
        "a": rng.randint(2, 999),
        "b": rng.randint(2, 999),
    }
    return Exchange(
        task="refusal",
        operands=(f"refusal|{wording.format(**slots)}",),
        question=word_request(rng, (wording,), **slots),
        reasoning="",
        answer=answer,
    )
