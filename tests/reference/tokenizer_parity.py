"""Compares `berth tokenize` with HuggingFace tokenizers, id by id.

    python3 tests/reference/tokenizer_parity.py BERTH TEXT... [--vocab FILE] [--lines 20000] [--seed 1]

Every line of the TEXT files and of a generated hostile file goes through both, cased and uncased, with every character of
Unicode among them. Without --vocab a vocabulary is learned from the first TEXT; to it come single characters of all kinds,
so that a difference cannot hide behind [UNK]. Needs `pip install tokenizers`; transformers' BertTokenizer, which is built on
it, is compared too where it is installed. Exits 1 at the first differing lines.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def reference(entries, lower):
    tokenizer = Tokenizer(WordPiece({token: i for i, token in enumerate(entries)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    return tokenizer


def every_character():
    return [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and c != 10]


def revealing_vocabulary(entries):
    """Adds all characters below U+30000, alone and as continuations; the rest stays [UNK]."""
    seen = set(entries)
    blank = " \t\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029"
    for c in every_character():
        character = chr(c)
        if c < 0x30000 and character not in blank and not 0xAC00 <= c < 0xD7A4:
            for token in (character, "##" + character):
                if token not in seen:
                    seen.add(token)
                    entries.append(token)
    return entries


def hostile_lines(words, count, seed):
    draw = random.Random(seed)
    characters = every_character()
    pools = [
        [ord(c) for c in "abcXYZ019 .,'-"],
        list(range(0x300, 0x370)) + list(range(0x1AB0, 0x1B00)) + list(range(0x1DC0, 0x1E00)) + [0x65, 0x41],
        list(range(0x4E00, 0x4F00)) + list(range(0x3040, 0x3100)) + list(range(0xF900, 0xFA80)) + [0x3002, 0x20],
        list(range(0x590, 0x780)) + [0x20],
        list(range(0x1F300, 0x1F700)) + [0x200D, 0xFE0F, 0x20E3],
        list(range(0, 10)) + list(range(11, 0x30)) + list(range(0x7F, 0xC0)) + list(range(0xE000, 0xE010)),
        list(range(0xAC00, 0xAD00)) + list(range(0x1100, 0x1200)),
        list(range(0xC0, 0x250)) + list(range(0x1E00, 0x2000)),
        list(range(0x2000, 0x2070)),
        list(range(0x900, 0xE00)),
        list(range(0x1D100, 0x1D250)) + list(range(0x11000, 0x11500)),
        characters,
    ]
    lines = [b"", b" ", b"[MASK]", b"a[MASK]b [mask] [MASK [CLS][SEP] [[UNK]]", b"one\r", b"\r", b"x" * 100, b"x" * 101,
             b"w" * 10000, "é".encode() * 100, "e\u0301".encode() * 101, b"\xff\xfe", b"ab\xc3", b"\xed\xa0\x80x",
             b"\xf4\x90\x80\x80", b"\xe0\x80\xaf", b"\xf0\x9f\x98", "İstanbul ŞİŞLİ ß ẞ ſ".encode(), "ΣΑΣ Σ".encode()]
    for first in range(0, len(characters), 24):  # every character: alone, and inside a word
        part = [chr(c) for c in characters[first:first + 24]]
        lines.append((" ".join(part) + " " + "".join("a%sb " % c for c in part)).encode())
    while len(lines) < count + len(characters) // 24:
        parts = []
        for _ in range(draw.randrange(1, 12)):
            kind = draw.random()
            pool = draw.choice(pools)
            if kind < 0.3:
                parts.append(draw.choice(words))
            elif kind < 0.9:
                parts.append("".join(chr(draw.choice(pool)) for _ in range(draw.randrange(1, 20))).encode())
            elif kind < 0.95:
                parts.append(draw.choice(SPECIALS).encode())
            else:
                parts.append(bytes(b for b in draw.randbytes(draw.randrange(1, 12)) if b != 10))
            if draw.random() < 0.5:
                parts.append(b" ")
        lines.append(b"".join(parts))
    return lines


def compare(berth, vocab_path, lines, expected, options, what):
    with tempfile.TemporaryFile() as text:
        text.write(b"".join(line + b"\n" for line in lines))
        text.seek(0)
        run = subprocess.run([berth, "tokenize", "--vocab", vocab_path] + options, stdin=text, stdout=subprocess.PIPE)
    if run.returncode:
        sys.exit("berth tokenize exits with %d" % run.returncode)
    got = run.stdout.decode().split("\n")[:-1]
    if len(got) != len(lines):
        sys.exit("%s: %d lines in, %d out" % (what, len(lines), len(got)))
    wrong = 0
    for number, (ours, theirs) in enumerate(zip(got, expected)):
        if ours != " ".join(map(str, theirs)):
            wrong += 1
            if wrong <= 5:
                print("%s: line %d differs: %r\n  berth     %s\n  reference %s" %
                      (what, number, lines[number][:200], ours[:300], " ".join(map(str, theirs))[:300]))
    print("%-32s %7d lines, %d differ" % (what, len(lines), wrong))
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("berth")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--vocab")
    parser.add_argument("--lines", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    lines = [line for path in arguments.text for line in open(path, "rb").read().split(b"\n")]
    words = [word for word in b" ".join(lines).split()][:20000] or [b"word"]
    hostile = hostile_lines(words, arguments.lines, arguments.seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for lower in (True, False):
            vocab_path = os.path.join(folder, "vocab.txt")
            if arguments.vocab:
                shutil.copy(arguments.vocab, vocab_path)
            else:
                subprocess.run([arguments.berth, "vocab", "--size", "8000", "--output", vocab_path, "--input",
                                arguments.text[0]] + ([] if lower else ["--cased"]), check=True, stdout=subprocess.DEVNULL)
                entries = revealing_vocabulary(open(vocab_path, encoding="utf-8", newline="\n").read().split("\n")[:-1])
                open(vocab_path, "w", encoding="utf-8", newline="\n").write("".join(e + "\n" for e in entries))
            entries = open(vocab_path, encoding="utf-8", newline="\n").read().split("\n")[:-1]
            tokenizer = reference(entries, lower)
            options, kind = (["--uncased"], "uncased") if lower else (["--cased"], "cased")
            for name, some in (("text", lines), ("hostile", hostile)):
                decoded = [line.decode("utf-8", "replace") for line in some]
                expected = [e.ids for e in tokenizer.encode_batch(decoded, add_special_tokens=False)]
                wrong += compare(arguments.berth, vocab_path, some, expected, options, name + ", " + kind)
                try:
                    from transformers import BertTokenizerFast
                except ImportError:
                    print("transformers is not installed: only tokenizers was compared")
                    continue
                theirs = BertTokenizerFast.from_pretrained(os.path.dirname(vocab_path), do_lower_case=lower)
                expected = theirs(decoded, add_special_tokens=False, verbose=False)["input_ids"]
                wrong += compare(arguments.berth, vocab_path, some, expected, options, name + ", " + kind + ", transformers")
    sys.exit(1 if wrong else 0)


main()
