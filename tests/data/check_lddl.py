#!/usr/bin/env python3
"""LDDL's Parquet files, with and without static masks, become shards that berth reads and trains on.

Usage: check_lddl.py [path of berth]. Needs pyarrow and h5py."""
import io
import os
import random
import subprocess
import sys
import tempfile

import h5py
import numpy
import pyarrow
import pyarrow.parquet

HERE = os.path.dirname(os.path.abspath(__file__))
BERTH = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/berth")
SCRIPT = os.path.join(HERE, "../../scripts/lddl_to_hdf5.py")


def run(*command, code=0):
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == code, f"{command}: exit {process.returncode}\n{process.stdout}{process.stderr}"
    return process


def saved(positions):
    file = io.BytesIO()
    numpy.save(file, numpy.asarray(positions, dtype=numpy.uint16))
    return file.getvalue()


def make(path, rows, static):
    draw, columns = random.Random(5), {"A": [], "B": [], "is_random_next": [], "num_tokens": []}
    masks = {"masked_lm_positions": [], "masked_lm_labels": []} if static else {}
    for _ in range(rows):
        a, b = [[draw.choice(WORDS) for _ in range(draw.randint(2, 12))] for _ in "ab"]
        tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
        columns["num_tokens"].append(len(tokens))
        columns["is_random_next"].append(draw.random() < 0.5)
        if static:
            positions = draw.sample([i for i, token in enumerate(tokens) if token[0] != "["], 2)  # in no order
            masks["masked_lm_positions"].append(saved(positions))
            masks["masked_lm_labels"].append(" ".join(tokens[i] for i in positions))
            for i in positions:
                tokens[i] = "[MASK]"
        columns["A"].append(" ".join(tokens[1:1 + len(a)]))
        columns["B"].append(" ".join(tokens[2 + len(a):-1]))
    table = {**columns, **masks}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    return table


WORDS = [f"w{i}" for i in range(100)] + ["##x"]
with tempfile.TemporaryDirectory() as folder:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vocab = f"{folder}/vocab.txt"
    with open(vocab, "w") as file:
        file.write("".join(entry + "\n" for entry in entries))
    for static in (True, False):
        os.makedirs(f"{folder}/in-{static}")
        table = make(f"{folder}/in-{static}/part.0.parquet", 5000, static)
        out = f"{folder}/out-{static}"
        convert = [sys.executable, SCRIPT, f"{folder}/in-{static}", "--vocab", vocab, "--output", out, "--seq-len", "32", "--max-predictions", "5"]
        said = run(*convert).stdout
        assert "5000 sequences in 1 shards" in said and ("no masks" in said) != static, said
        with h5py.File(f"{out}/lddl_training_0000.hdf5") as shard:
            for row in (0, 4095, 4096, 4999):
                a, b = table["A"][row].split(), table["B"][row].split()
                expected = [entries.index(token) for token in ["[CLS]", *a, "[SEP]", *b, "[SEP]"]]
                assert shard["input_ids"][row].tolist() == expected + [0] * (32 - len(expected))
                assert shard["segment_ids"][row].sum() == len(b) + 1 and shard["input_mask"][row].sum() == len(expected)
                assert shard["next_sentence_labels"][row] == table["is_random_next"][row]
                if static:
                    positions = numpy.load(io.BytesIO(table["masked_lm_positions"][row]))
                    labels = dict(zip(positions.tolist(), table["masked_lm_labels"][row].split()))
                    got = shard["masked_lm_positions"][row]
                    assert got[got > 0].tolist() == sorted(labels)
                    assert shard["masked_lm_ids"][row][:len(labels)].tolist() == [entries.index(labels[i]) for i in sorted(labels)]
        run(BERTH, "train", os.path.join(HERE, "../../configs/bert-tiny.ini"), f"data.train={out}", "data.eval=", f"model.vocab={vocab}", "train.steps=2",
            "train.global_batch=8", f"checkpoint.dir={folder}/run-{static}", "data.masking=" + ("static" if static else "dynamic"))
    wrong = run(*[part.replace("32", "8") for part in convert], code=2).stderr
    assert wrong.count("\n") == 1 and "expected at most --seq-len 8" in wrong, wrong
print("LDDL: as expected")
