#!/usr/bin/env python3
"""model.init: vocabulary and casing come along, another vocabulary is refused, and model.vocab_remap moves embeddings by token.

Usage: check_init.py [path of berth]."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from made_text import text_and_shards

BERTH = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/berth")
SIZES = ["model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=2", "model.intermediate_size=32", "model.max_position_embeddings=32",
         "train.global_batch=4", "train.steps=1", "optim.lr=1e-30"]  # a step that moves nothing


def berth(*arguments, code=0):
    process = subprocess.run([BERTH, *arguments], capture_output=True, text=True)
    assert process.returncode == code, f"berth {arguments}: exit {process.returncode}\n{process.stderr}"
    return process.stderr


def tensors(folder):
    with open(f"{folder}/latest/model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            out[name] = entry["shape"], struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return out


def rows(tensor):
    (count, *rest), values = tensor
    width = rest[0] if rest else 1
    return [values[i * width:(i + 1) * width] for i in range(count)]


def lower_case(folder):
    with open(f"{folder}/tokenizer_config.json") as file:
        return json.load(file)["do_lower_case"]


with tempfile.TemporaryDirectory() as folder:
    text_and_shards(BERTH, folder)
    ini, old, vocab = f"{folder}/x.ini", f"{folder}/old", f"{folder}/vocab.txt"
    open(ini, "w").close()
    train = ["train", ini, *SIZES, f"data.train={folder}/shards/train"]
    berth(*train, f"model.vocab={vocab}", f"checkpoint.dir={old}", "model.do_lower_case=false")
    with open(vocab) as file:
        entries = file.read().split("\n")[:-1]

    # the vocabulary's own casing would be lower case: the model says otherwise, and that comes along
    assert lower_case(f"{old}/latest") is False
    berth(*train, f"model.init={old}/latest", f"checkpoint.dir={folder}/again")
    assert lower_case(f"{folder}/again/latest") is False
    assert tensors(old) == tensors(f"{folder}/again")

    # a vocabulary of the same size and other order, and one with new tokens
    kept = entries[:5] + entries[:4:-1][:100]
    made = ["".join(entries[20:23]).replace("##", ""), "##" + entries[30].replace("##", "") + "zz", "\u4e2d"]
    with open(f"{folder}/new.txt", "w") as file:
        file.write("".join(token + "\n" for token in kept + made))
    with open(f"{folder}/turned.txt", "w") as file:
        file.write("".join(token + "\n" for token in entries[:5] + entries[:4:-1]))
    message = berth(*train, f"model.init={old}/latest", f"model.vocab={folder}/turned.txt", f"checkpoint.dir={folder}/none", code=2)
    assert re.fullmatch(r"berth: model.vocab = .*turned.txt is not the vocabulary of model.init, .*vocab_remap=true.*\n", message), message
    message = berth(*train, f"model.init={old}/latest", "model.vocab_remap=true", f"checkpoint.dir={folder}/none", code=2)
    assert "expected model.vocab" in message and not os.path.exists(f"{folder}/none"), message

    berth("shard", "--input", f"{folder}/text.txt", "--vocab", f"{folder}/new.txt", "--output", f"{folder}/new", "--seq-len", "32", "--max-predictions", "5")
    new = f"{folder}/remapped"
    said = berth("train", ini, *SIZES, f"data.train={folder}/new/train", f"model.init={old}/latest", f"model.vocab={folder}/new.txt", "model.vocab_remap=true",
                 f"checkpoint.dir={new}")
    assert f"of the {len(kept + made)} entries of the vocabulary, {len(kept)} keep their embedding, {len(made)} start" in said, said
    before, after = tensors(old), tensors(new)

    def pieces(token):  # greedy, longest first
        first, at, out = not token.startswith("##"), 0, []
        token = token.removeprefix("##")
        while at < len(token):
            found = next((end for end in range(len(token), at, -1) if ("" if first else "##") + token[at:end] in entries), None)
            if found is None:
                return ["[UNK]"]
            out.append(("" if first else "##") + token[at:found])
            at, first = found, False
        return out

    splits = [pieces(token) for token in made]
    assert len(splits[0]) > 1 and splits[2] == ["[UNK]"], splits
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        was, now = rows(before[name]), rows(after[name])
        assert len(now) == len(kept + made)
        for token, row in zip(kept, now):
            assert row == was[entries.index(token)], (name, token)
        for split, row in zip(splits, now[len(kept):]):
            for column, value in enumerate(row):
                mean = sum(was[entries.index(piece)][column] for piece in split) / len(split)
                assert abs(value - mean) <= 1e-6 * abs(mean) + 1e-8, (name, split)
    others = [name for name in before if before[name][0] == after[name][0]]
    assert len(others) > 20 and all(before[name] == after[name] for name in others)
    # a folder whose vocabulary has an entry without a row
    shutil.copytree(f"{old}/latest/", f"{folder}/short")
    with open(f"{folder}/short/vocab.txt", "a") as file:
        file.write("rowless\n")
    message = berth("train", ini, *SIZES, f"data.train={folder}/new/train", f"model.init={folder}/short", f"model.vocab={folder}/new.txt", "model.vocab_remap=true",
                    f"checkpoint.dir={folder}/none", code=2)
    count = len(entries)
    assert f"word_embeddings.weight is {count}x16, the model needs {count + 1}x16 or more rows" in message, message
    assert message.count("\n") == 1 and not os.path.exists(f"{folder}/none"), message

    # more positions: refused, or tiled
    longer = ["train", ini, *[size for size in SIZES if "max_position" not in size], "model.max_position_embeddings=70", f"data.train={folder}/shards/train",
              f"model.init={old}/latest", f"checkpoint.dir={folder}/longer"]
    message = berth(*longer, code=2)
    assert "model.max_position_embeddings = 70, but" in message and "has 32" in message, message
    assert "32 position embeddings, repeated to make 70" in berth(*longer, "model.tile_positions=true")
    name = "bert.embeddings.position_embeddings.weight"
    was, now = rows(before[name]), rows(tensors(f"{folder}/longer")[name])
    assert len(now) == 70 and all(row == was[i % 32] for i, row in enumerate(now))
print("model.init: as expected")
