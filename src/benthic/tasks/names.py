"""Names of people, places and things. Half of them are invented, so that copying is learned rather than recalled."""

import random


def listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


FIRST_NAMES = listed(
    "Anna Ben Carla David Elena Felix Grace Henry Iris Jonas Kate Liam Maria Noah Olivia Paul Quinn Rosa Sam Tina "
    "Uma Victor Wendy Xavier Yuki Zoe Ahmed Bianca Chen Dmitri Emma Farid Greta Hugo Ines Jack Karim Lena Marco "
    "Nina Omar Priya Raj Sofia Tom Ursula Vera Will Alice Bob Charlie Diana Eric Fiona George Hannah Ivan Julia "
    "Kevin Laura Mike"
)
SURNAMES = listed(
    "Smith Jones Brown Garcia Miller Rossi Novak Kim Lee Tanaka Silva Khan Weber Dubois Ivanov Olsen Costa Berg "
    "Moreau Walker Young King Wright Hill Fischer Lopez Santos Clark Evans Turner Cooper Reed Murphy Sato Singh "
    "Patel"
)
CITIES = listed(
    "Oslo Paris Berlin London Madrid Rome Vienna Prague Lisbon Dublin Athens Warsaw Helsinki Stockholm Tokyo "
    "Seoul Beijing Shanghai Delhi Mumbai Cairo Nairobi Lagos Toronto Boston Chicago Denver Seattle Austin Miami "
    "Lima Bogota Santiago Sydney Melbourne Auckland Istanbul Zurich Geneva Milan Hamburg Munich Copenhagen "
    "Amsterdam Brussels Porto Bergen Lyon Kyoto Osaka Houston Dallas Portland Montreal Vancouver"
)
ITEMS = listed(
    "apples chairs books lamps pens tables shoes bottles cups phones tickets shirts cables plates keys coins "
    "stamps cards marbles boxes stones shells bricks candles flowers eggs oranges pencils"
)
COLORS = listed("red blue green black white yellow brown gray orange purple pink")
JOBS = listed(
    "teacher doctor engineer nurse baker farmer pilot lawyer painter writer driver chef singer plumber dentist"
)
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
CITY_ENDINGS = ("", "n", "r", "s", "ville", "ton", "burg", "stad", "mouth")


def invented_name(rng: random.Random, endings: tuple[str, ...] = ("",)) -> str:
    syllables = (rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(2, 4)))
    return "".join(syllables).capitalize() + rng.choice(endings)


def first_name(rng: random.Random) -> str:
    return rng.choice(FIRST_NAMES) if rng.random() < 0.5 else invented_name(rng)


def full_name(rng: random.Random) -> str:
    return f"{first_name(rng)} {rng.choice(SURNAMES) if rng.random() < 0.7 else invented_name(rng)}"


def city(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.6 else invented_name(rng, CITY_ENDINGS)
