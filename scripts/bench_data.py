#!/usr/bin/env python3
"""berth's data preparation beside its peers, in turn, medians of ROUNDS: `make bench-data [TEXT=FILE]`.

Prints lines "data NAME berth peer ratio", the speeds in the unit that the name ends with. berth is timed as a whole command, from
start to exit with its reading and writing; a peer only in the call that does the work. Both use all processors, where they can:
    tokenize   berth tokenize                  | tokenizers' encode_batch (Rust)
    vocab      berth vocab                     | tokenizers' BertWordPieceTokenizer.train (Rust)
    shards     berth shard                     | the original recipe in Python (below), on a part of the text
    reader     berth inspect: every sequence inflated, checked and unpadded, one thread | h5py reading the same datasets whole
Needs tokenizers, transformers and h5py (build/venv has them after scripts/check.sh)."""
import argparse
import glob
import os
import random
import statistics
import subprocess
import tempfile
import time

import h5py
import numpy
import tokenizers
import transformers

ROUNDS = 3
CORES = len(os.sched_getaffinity(0))
SEQ_LEN, PREDICTIONS, SHORT, MASKED = 128, 20, 0.1, 0.15


def timed(work, *arguments):
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def berth(*arguments, stdin=None):
    subprocess.run([options.berth, *arguments], check=True, stdin=stdin and open(stdin, "rb"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def compare(name, ours, theirs, our_amount, their_amount):
    times = [(timed(ours), timed(theirs)) for _ in range(ROUNDS)]
    our_rate, their_rate = our_amount / statistics.median(t[0] for t in times), their_amount / statistics.median(t[1] for t in times)
    print(f"data {name} {our_rate:.1f} {their_rate:.1f} {our_rate / their_rate:.1f}", flush=True)


# --- the original recipe: sentences a line, documents between empty lines, pairs, masks, padded rows ---

def instances_of(documents, number, draw, words):
    document, chunk, length, out = documents[number], [], 0, []
    room = SEQ_LEN - 3
    target = draw.randint(2, room) if draw.random() < SHORT else room
    at = 0
    while at < len(document):
        chunk.append(document[at])
        length += len(document[at])
        if at == len(document) - 1 or length >= target:
            a_end = draw.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a, b = [t for s in chunk[:a_end] for t in s], []
            is_random = len(chunk) == 1 or draw.random() < 0.5
            if is_random:
                other = number
                while other == number and len(documents) > 1:
                    other = draw.randrange(len(documents))
                for sentence in documents[other][draw.randrange(len(documents[other])):]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                at -= len(chunk) - a_end
            else:
                b = [t for s in chunk[a_end:] for t in s]
            while len(a) + len(b) > room:
                longer = a if len(a) > len(b) else b
                if draw.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            if a and b:
                out.append(masked(["[CLS]", *a, "[SEP]", *b, "[SEP]"], len(a) + 2, is_random, draw, words))
            chunk, length = [], 0
            target = draw.randint(2, room) if draw.random() < SHORT else room
        at += 1
    return out


def masked(tokens, b_begin, is_random, draw, words):
    candidates = [i for i, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    draw.shuffle(candidates)
    positions = sorted(candidates[:min(PREDICTIONS, max(1, round(len(tokens) * MASKED)))])
    labels = [tokens[i] for i in positions]
    for i in positions:
        if draw.random() < 0.8:
            tokens[i] = "[MASK]"
        elif draw.random() < 0.5:
            tokens[i] = draw.choice(words)
    return tokens, b_begin, positions, labels, is_random


def recipe(path, vocab, output):
    tokenizer = transformers.BertTokenizer(vocab)  # pure Python, as the recipe's own
    documents, draw, words = [[]], random.Random(1), list(tokenizer.vocab)
    with open(path, encoding="utf-8") as file:
        for line in file:
            tokens = tokenizer.tokenize(line.strip())
            if tokens:
                documents[-1].append(tokens)
            elif documents[-1]:
                documents.append([])
    documents = [document for document in documents if document]
    rows = [row for number in range(len(documents)) for row in instances_of(documents, number, draw, words)]
    draw.shuffle(rows)
    ids, mask, types = (numpy.zeros((len(rows), SEQ_LEN), kind) for kind in ("i4", "i1", "i1"))
    positions, labels = (numpy.zeros((len(rows), PREDICTIONS), "i4") for _ in "ab")
    for at, (tokens, b_begin, where, what, _) in enumerate(rows):
        ids[at, :len(tokens)] = tokenizer.convert_tokens_to_ids(tokens)
        mask[at, :len(tokens)] = 1
        types[at, b_begin:len(tokens)] = 1
        positions[at, :len(where)] = where
        labels[at, :len(where)] = tokenizer.convert_tokens_to_ids(what)
    with h5py.File(output, "w") as file:
        for name, values in (("input_ids", ids), ("input_mask", mask), ("segment_ids", types), ("masked_lm_positions", positions),
                             ("masked_lm_ids", labels), ("next_sentence_labels", numpy.array([row[4] for row in rows], "i1"))):
            file.create_dataset(name, data=values, compression="gzip")


def main():
    folder = work.name
    vocab, shards = f"{folder}/vocab.txt", f"{folder}/shards"
    megabytes = os.path.getsize(options.text) / 1e6
    with open(options.text, encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")
    print(f"{options.text}: {megabytes:.1f} MB, {len(lines)} lines; {CORES} processors; tokenizers {tokenizers.__version__}", flush=True)
    berth("vocab", "--input", options.text, "--size", "8000", "--output", vocab)
    peer = tokenizers.BertWordPieceTokenizer(vocab, lowercase=True)

    def learn():
        tokenizers.BertWordPieceTokenizer(lowercase=True).train([options.text], vocab_size=8000, show_progress=False)

    def shard(path, output, size):
        subprocess.run(["rm", "-rf", output], check=True)
        berth("shard", "--input", path, "--vocab", vocab, "--output", output, "--held-out", "0", "--dupe-factor", str(size))

    def read_h5py():
        for path in glob.glob(f"{shards}/train/*"):
            with h5py.File(path) as file:
                for name in file:
                    file[name][()]

    compare("tokenize_MB/s", lambda: berth("tokenize", "--vocab", vocab, stdin=options.text),
            lambda: peer.encode_batch(lines, add_special_tokens=False), megabytes, megabytes)
    compare("vocab_MB/s", lambda: berth("vocab", "--input", options.text, "--size", "8000", "--output", f"{folder}/v"), learn, megabytes, megabytes)
    part, keep = f"{folder}/part.txt", max(1, len(lines) // max(1, int(megabytes)))  # about a megabyte
    with open(part, "w", encoding="utf-8") as file:
        file.write("\n".join(lines[:keep]))
    compare("shards_MB/s", lambda: shard(options.text, shards, 1), lambda: recipe(part, vocab, f"{folder}/peer.hdf5"), megabytes,
            os.path.getsize(part) / 1e6)
    shard(options.text, shards, 5)
    with h5py.File(glob.glob(f"{shards}/train/*")[0]) as file:
        sequences = file["input_ids"].shape[0] * len(glob.glob(f"{shards}/train/*"))
    compare("reader_sequences/s", lambda: berth("inspect", f"{shards}/train"), read_h5py, sequences, sequences)


parser = argparse.ArgumentParser()
parser.add_argument("berth")
parser.add_argument("text")
options = parser.parse_args()
work = tempfile.TemporaryDirectory()
main()
