"""Reversing a word, counting a letter or all letters, spelling several words.

Counting shows its work even without thinking: the letters are inside merged tokens, and summing them unseen is not
learned at this size. The last number of the answer is the count.
"""

import random

from benthic.tasks.conversation import Exchange
from benthic.tasks.lexicon import LETTERS, Lexicon
from benthic.tasks.phrasing import word_request

REVERSAL_FORMS = (
    "Reverse the word {w}.",
    'Reverse the word "{w}".',
    "Reverse the word '{w}'.",
    "Reverse the string {w}.",
    'Reverse the string "{w}".',
    "Reverse this string: {w}",
    "Reverse this word: {w}",
    "Reverse: {w}",
    "Reverse {w}.",
    'Reverse "{w}".',
    "Reverse the letters of {w}.",
    "Reverse the letters in {w}.",
    "Spell {w} backwards.",
    'Spell "{w}" backwards.',
    "Spell the word {w} backwards.",
    'Write "{w}" backwards.',
    "Write {w} backwards.",
    "Write the word {w} in reverse.",
    "What is {w} spelled backwards?",
    'What is "{w}" spelled backwards?',
    "What is {w} backwards?",
    "What is the reverse of {w}?",
    "Give me the reverse of '{w}'.",
    "Give me {w} backwards.",
    "Can you reverse the word {w}?",
    'Could you reverse "{w}" for me?',
    "Can you spell {w} backwards?",
    "How do you write {w} backwards?",
    "Turn the word {w} around.",
    "{w} backwards?",
    "I want {w} reversed.",
)
COUNT_FORMS = (
    "How many times does the letter {c} appear in {w}?",
    'How many times does the letter "{c}" appear in "{w}"?',
    "How many times does the letter '{c}' appear in the word '{w}'?",
    "How many times does {c} occur in {w}?",
    "How many times is {c} in {w}?",
    "How many times is the letter {c} used in {w}?",
    "How many {c}'s are in {w}?",
    "How many {c}'s are there in {w}?",
    'How many {c}\'s are in the word "{w}"?',
    "How many {c}'s does {w} have?",
    "How many {c}s are in {w}?",
    "How many {c} are in the word {w}?",
    "How many {c} are there in {w}?",
    "How many letters {c} are in {w}?",
    "How many of the letter {c} are in {w}?",
    "How often does {c} occur in {w}?",
    'How often does the letter {c} occur in "{w}"?',
    "How often is the letter {c} in {w}?",
    "Count the letter {c} in {w}.",
    "Count the {c}'s in {w}.",
    "Count the {c}'s in '{w}'.",
    "Count how many times {c} appears in {w}.",
    "Count the number of {c}'s in {w}.",
    "What is the number of {c}'s in {w}?",
    "Can you count the {c}'s in {w}?",
    "Tell me how many {c}'s are in {w}.",
    "In the word {w}, how many letters are {c}?",
    "In {w}, how many {c}'s are there?",
    "Number of {c} in {w}?",
)
LENGTH_FORMS = (
    "How many letters are in {w}?",
    'How many letters does "{w}" have?',
    "How many letters are in the word {w}?",
    "How many letters does the word {w} have?",
    "How long is the word {w}?",
    "Count the letters in {w}.",
    "Count the letters of '{w}'.",
    "What is the length of {w}?",
)
SPELL_FORMS = (
    "Spell {w}.",
    'Spell "{w}".',
    "Spell these words: {w}",
    "Spell letter by letter: {w}",
    "Write the letters of {w}.",
    "What are the letters of {w}?",
    "Can you spell {w}?",
)
REVERSE_LIST_FORMS = (
    "Reverse these words: {w}",
    "Reverse each word: {w}",
    "Write each word backwards: {w}",
    "Spell these words backwards: {w}",
)


def reversal(rng: random.Random, lexicon: Lexicon) -> Exchange:
    word = lexicon.draw(rng)
    reverse = word[::-1]
    return Exchange(
        task="reversal",
        operands=(f"word|{word.lower()}",),
        question=word_request(rng, REVERSAL_FORMS, w=word),
        reasoning=f" {' '.join(word)}; reversed: {' '.join(reverse)}.",
        answer=reverse,
        spelled=True,
    )


def counting(rng: random.Random, lexicon: Lexicon) -> Exchange:
    """One letter of a word, whatever its case; in one question of twelve, all letters."""
    word = lexicon.draw(rng)
    if rng.random() < 1 / 12:
        letter, question = "", word_request(rng, LENGTH_FORMS, w=word)
    else:
        letter = rng.choice(word.lower()) if rng.random() < 0.85 else rng.choice(LETTERS)
        question = word_request(rng, COUNT_FORMS, w=word, c=letter)
    tally, count = count_aloud(word.lower(), letter)
    return Exchange(
        task="counting",
        operands=(f"word|{word.lower()}",),
        question=question,
        reasoning=f"{tally}; count {count}.",
        answer=str(count),
        direct_answer=f"{tally.lstrip()}: {count}",
    )


def count_aloud(word: str, letter: str) -> tuple[str, int]:
    """The letters of `word`, each occurrence of `letter` (empty: of any letter) followed by its number."""
    count, parts = 0, []
    for character in word:
        if letter in ("", character):
            count += 1
            parts.append(f" {character} {count}")
        else:
            parts.append(f" {character}")
    return "".join(parts), count


def spelling(rng: random.Random, lexicon: Lexicon) -> Exchange:
    """One to six words, spelled out or each reversed: many letters a token, so entries' spelling is learned fast."""
    words = [lexicon.draw(rng) for _ in range(rng.randint(1, 6))]
    listing = ", ".join(words)
    if len(words) > 1 and rng.random() < 0.5:
        answer, is_reversed = ", ".join(word[::-1] for word in words), True
    else:
        answer, is_reversed = ", ".join(" ".join(word) for word in words), False
    return Exchange(
        task="spelling",
        operands=tuple(f"word|{word.lower()}" for word in words),
        question=word_request(rng, REVERSE_LIST_FORMS if is_reversed else SPELL_FORMS, w=listing),
        reasoning="",
        answer=answer,
        spelled=is_reversed,
    )
