"""Collects the freely licensed English text that the bundled model reads: `python scripts/prepare_text.py`.

Downloads five Debian packages, takes their text out and writes, into `.data/` (not under version control),

    text.json.gz   {"wordnet": [...], "bible": [...], "jargon": [...], "devil": [...], "words": [...]}
    NOTICE         where each part comes from and under which terms

and, into the package, `src/benthic/assets/words.txt`: common words for spelling prompts on a machine without `.data/`.
Needs a Debian machine (apt-get, dpkg-deb). Entries with coarse words are left out.
"""

import argparse
import gzip
import json
import re
import struct
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("wordnet-base", "sword-text-web", "dict-jargon", "dict-devil", "wamerican")
WORDS_SHIPPED = 9000
COARSE = re.compile(
    r"\b\w*(?:fuck|shit|cunt|nigger|nigra|negro|whor(?:e|ing)|slut|bitch|rape[drs]?\b|rapist|porn|penis|vagina|orgasm|faggot|bastard|"
    r"masturbat|molest|genital|sexual|incest|testicl|scrotum|buttock|screw[ei]|prostitut|harlot|lewd|fornicat|adulter|spic\b|"
    r"kike|dyke|damn|piss|crap|turd|fart|arse\b|\bass\b|\basses\b|asshole|breast|nipple|semen\b|erotic|intercourse|suicid|darky|darkie|"
    r"\bsex\b|\bjew|\bkill|circumcis|massacre|concubin|\bslave|nude\b|naked|condom|coitus|urin|feces|faeces|excre|copulat)\w*",
    re.IGNORECASE,
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path(".data"))
    arguments.add_argument("--words", type=Path, default=Path("src/benthic/assets/words.txt"))
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = unpack_packages(Path(folder))
        share = root / "usr/share"
        text = {
            "wordnet": list(wordnet(share / "wordnet")),
            "bible": list(bible(share / "sword/modules/texts/ztext/engWEB2015eb")),
            "jargon": list(jargon(share / "dictd/jargon.dict.dz")),
            "devil": list(devil(share / "dictd/devil.dict.dz")),
        }
        text = {name: [entry for entry in entries if not COARSE.search(entry)] for name, entries in text.items()}
        text["words"] = spelling_words(share / "dict/american-english", 3, 12)
        common = common_words(share / "wordnet", set(text["words"]))
        notice = notices(share / "doc")
    options.out.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(options.out / "text.json.gz", "wb", compresslevel=9, mtime=0) as file:
        file.write(json.dumps(text, ensure_ascii=False).encode())
    (options.out / "NOTICE").write_text(notice)
    options.words.write_text("\n".join(common) + "\n")
    for name, entries in text.items():
        print(f"{name}: {len(entries)} entries, {sum(map(len, entries)) / 1e6:.2f} million characters")
    print(f"{options.words}: {len(common)} words")


def unpack_packages(folder: Path) -> Path:
    """Downloads and unpacks PACKAGES under `folder`; returns the root of the merged tree."""
    root = folder / "root"
    subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=folder, check=True)
    for package in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    return root


def wordnet(folder: Path) -> Iterator[str]:
    """Definitions with their examples, of words that occur in WordNet's tagged corpus, in dictionary order."""
    for part, name in (("noun", "noun"), ("verb", "verb"), ("adj", "adjective"), ("adv", "adverb")):
        glosses = dict(read_glosses(folder / f"data.{part}"))
        for lemma, offsets, tagged in read_index(folder / f"index.{part}"):
            for offset in offsets[:tagged]:
                definition, examples = split_gloss(glosses[offset])
                sentences = " ".join(finish_sentence(example) for example in examples)
                yield f"{lemma} ({name}): {definition}.{' ' + sentences if sentences else ''}"


def read_glosses(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="latin-1").splitlines():
        if not line.startswith(" "):
            yield line[:8], line.split("|", 1)[1].strip()


def read_index(path: Path) -> Iterator[tuple[str, list[str], int]]:
    """Yields (lemma, synset offsets by frequency, how many of the senses occur in the tagged corpus)."""
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith(" "):
            continue
        fields = line.split()
        senses, pointers = int(fields[2]), int(fields[3])
        offsets = fields[6 + pointers :]
        yield fields[0].replace("_", " "), offsets, int(fields[5 + pointers])
        assert len(offsets) == senses


def split_gloss(gloss: str) -> tuple[str, list[str]]:
    examples = re.findall(r'"([^"]+)"', gloss)
    definition = re.sub(r'"[^"]*"', "", gloss)
    definition = re.sub(r"\s*[;,:]\s*(?=[;,:]|$)", "", definition.strip()).strip(" ;:,.")
    return definition.replace("`", "'"), [example.strip() for example in examples]


def finish_sentence(text: str) -> str:
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else text + "."


def bible(folder: Path) -> Iterator[str]:
    """Passages of about a dozen verses from a SWORD zText module: one zlib block a book, 10-byte verse index."""
    for testament in ("ot", "nt"):
        blocks = (folder / f"{testament}.bzz").read_bytes()
        sizes = list(struct.iter_unpack("<III", (folder / f"{testament}.bzs").read_bytes()))
        books = [zlib.decompress(blocks[start : start + size]) for start, size, _ in sizes]
        passage, passage_book = "", -1
        for book, start, size in struct.iter_unpack("<IIH", (folder / f"{testament}.bzv").read_bytes()):
            if not size:
                continue
            verse = flow(strip_markup(books[book][start : start + size].decode()))
            if passage and (book != passage_book or len(passage) > 1000):
                yield passage
                passage = ""
            passage, passage_book = f"{passage} {verse}".strip(), book
        yield passage


def strip_markup(text: str) -> str:
    text = re.sub(r"<(note|title)\b.*?</\1>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text)).strip()


def jargon(path: Path) -> Iterator[str]:
    """Entries of the Jargon File: head word, then paragraphs joined to lines of running text."""
    for head, body in dictionary_entries(path, r"\n(?=\S[^\n]*\n [^ \n])"):
        paragraphs = re.split(r"\n\s*\n", re.sub(r"^ [^\n]*\n", "", body))
        text = "\n".join(flow(paragraph) for paragraph in paragraphs if paragraph.strip())
        text = re.sub(r"[{}]", "", text)
        if 80 < len(text) < 4000:
            yield f"{head}: {text}"


def devil(path: Path) -> Iterator[str]:
    """Entries of the Devil's Dictionary without their verses (the indented lines)."""
    for head, body in dictionary_entries(path, r"\n\n(?=[A-Z][A-Z' -]+, )"):
        lines = (head + "\n" + body).splitlines()
        prose = flow("\n".join(line for line in lines if not line.startswith("    ")))
        if 40 < len(prose) < 4000 and re.match(r"[A-Z' -]+, ", prose):
            yield prose


def dictionary_entries(path: Path, boundary: str) -> Iterator[tuple[str, str]]:
    """Yields (first line, rest) of every entry in a dictd file; `boundary` is a pattern between two entries."""
    for entry in re.split(boundary, gzip.decompress(path.read_bytes()).decode())[1:]:
        head, _, body = entry.strip("\n").partition("\n")
        yield head.strip(), body


def flow(paragraph: str) -> str:
    text = re.sub(r"\s+", " ", paragraph).strip()
    for fancy, plain in (("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"'), ("\u2014", " - ")):
        text = text.replace(fancy, plain)
    return text


def spelling_words(path: Path, shortest: int, longest: int) -> list[str]:
    """Lower-case words of the SCOWL list, without apostrophes and coarse words."""
    pattern = re.compile(rf"[a-z]{{{shortest},{longest}}}")
    return [word for word in path.read_text().split() if pattern.fullmatch(word) and not COARSE.search(word)]


def common_words(folder: Path, known: set[str]) -> list[str]:
    """The words that WordNet's tagged corpus uses most, sorted; those of equal count by alphabet."""
    counts: Counter[str] = Counter()
    for line in (folder / "cntlist.rev").read_text().splitlines():
        sense, _, count = line.split()
        counts[sense.split("%")[0]] += int(count)
    ranked = sorted((word for word in counts if word in known), key=lambda word: (-counts[word], word))
    return sorted(ranked[:WORDS_SHIPPED])


def notices(folder: Path) -> str:
    parts = ["Text in text.json.gz and its terms. Entries were selected, cleaned of markup and joined to passages.\n"]
    for package in PACKAGES:
        parts.append(f"==== {package} ====\n{(folder / package / 'copyright').read_text()}")
    return "\n".join(parts)


if __name__ == "__main__":
    main()
