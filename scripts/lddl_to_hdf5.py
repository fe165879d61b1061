#!/usr/bin/env python3
"""LDDL's Parquet files into HDF5 shards in NVIDIA's form, a shard a file. Needs pyarrow, h5py and numpy.

Without static masks in the files (masked_lm_positions, masked_lm_labels) the shards have none either: train with
data.masking=dynamic."""
import argparse
import io
import os
import sys

import h5py
import numpy
import pyarrow.parquet

ROWS = 4096  # at a time


def stop(message):
    sys.exit(print("lddl_to_hdf5.py: " + message, file=sys.stderr) or 2)


def read_vocab(path):
    with open(path, encoding="utf-8") as file:
        ids = {line.rstrip("\n"): number for number, line in enumerate(file)}
    for token in ("[CLS]", "[SEP]", "[UNK]"):
        if token not in ids:
            stop(f"{path}: has no entry {token}")
    return ids


def positions_of(value):
    """A list of numbers, or an array as numpy saves it."""
    return numpy.load(io.BytesIO(value)) if isinstance(value, bytes) else numpy.asarray(value)


def convert_row(row, number, path, ids, arrays, at, options):
    def id_of(token):
        if token not in ids:
            stop(f"{path}: row {number}: token {token!r} is not in {options.vocab}")
        return ids[token]

    a, b = [id_of(token) for token in row["A"].split()], [id_of(token) for token in row["B"].split()]
    tokens = [ids["[CLS]"], *a, ids["[SEP]"], *b, ids["[SEP]"]]
    if len(tokens) > options.seq_len:
        stop(f"{path}: row {number}: has {len(tokens)} tokens, expected at most --seq-len {options.seq_len}")
    arrays["input_ids"][at, :len(tokens)] = tokens
    arrays["input_mask"][at, :len(tokens)] = 1
    arrays["segment_ids"][at, len(a) + 2:len(tokens)] = 1
    arrays["next_sentence_labels"][at] = row["is_random_next"]
    if "masked_lm_positions" not in row:
        return
    positions, labels = positions_of(row["masked_lm_positions"]), [id_of(token) for token in row["masked_lm_labels"].split()]
    if len(positions) != len(labels) or len(labels) > options.max_predictions:
        stop(f"{path}: row {number}: has {len(positions)} masked positions and {len(labels)} labels, expected as many of each, "
             f"at most --max-predictions {options.max_predictions}")
    order = numpy.argsort(positions)
    arrays["masked_lm_positions"][at, :len(labels)] = positions[order]
    arrays["masked_lm_ids"][at, :len(labels)] = numpy.asarray(labels, dtype="i4")[order]


def convert(path, target, ids, options):
    try:
        source = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        stop(f"{path}: cannot be read as Parquet: {error}")
    names = source.schema_arrow.names
    for name in ("A", "B", "is_random_next"):
        if name not in names:
            stop(f"{path}: has no column {name}, expected A, B, is_random_next")
    columns = [name for name in ("A", "B", "is_random_next", "masked_lm_positions", "masked_lm_labels") if name in names]
    rows = source.metadata.num_rows
    widths = {"input_ids": ("i4", options.seq_len), "input_mask": ("i1", options.seq_len), "segment_ids": ("i1", options.seq_len),
              "masked_lm_positions": ("i4", options.max_predictions), "masked_lm_ids": ("i4", options.max_predictions),
              "next_sentence_labels": ("i1", None)}
    if rows == 0:
        stop(f"{path}: holds no rows")
    with h5py.File(target + ".part", "w") as file:
        for name, (kind, width) in widths.items():
            shape = (rows,) if width is None else (rows, width)
            file.create_dataset(name, shape, kind, chunks=(min(256, rows), *shape[1:]), compression="gzip")
        begin = 0
        for batch in source.iter_batches(ROWS, columns=columns):
            count = batch.num_rows
            arrays = {name: numpy.zeros((count,) if width is None else (count, width), kind) for name, (kind, width) in widths.items()}
            for at, row in enumerate(batch.to_pylist()):
                convert_row(row, begin + at, path, ids, arrays, at, options)
            for name, values in arrays.items():
                file[name][begin:begin + count] = values
            begin += count
    os.replace(target + ".part", target)
    return rows, "masked_lm_positions" in columns


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", nargs="+", help="Parquet files, or folders with them")
    parser.add_argument("--vocab", required=True, help="the vocabulary that the tokens come from")
    parser.add_argument("--output", required=True, help="folder of the shards")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--max-predictions", type=int, default=20)
    options = parser.parse_args()
    paths = []
    for path in options.input:
        found = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names if ".parquet" in name]
        paths += sorted(found) if os.path.isdir(path) else [path]
    if not paths:
        stop(f"{options.input[0]}: no Parquet files in it")
    ids = read_vocab(options.vocab)
    os.makedirs(options.output, exist_ok=True)
    sequences, static = 0, True
    for number, path in enumerate(paths):
        rows, masked = convert(path, f"{options.output}/lddl_training_{number:04d}.hdf5", ids, options)
        sequences, static = sequences + rows, static and masked
    print(f"{options.output}: {sequences} sequences in {len(paths)} shards" + ("" if static else "; no masks: use data.masking=dynamic"))


main()
