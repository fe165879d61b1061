#!/usr/bin/env python3
"""What berth writes, transformers loads: the model without missing or unexpected tensors, the tokenizers (fast and slow) with the
right casing, the fill-mask pipeline; and both compute the same losses on the same held-out shards.

Usage: check_transformers.py [path of berth]. Trains tiny models on made text: cased and uncased, with and without NSP, and one
that starts from a folder that transformers saved."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy
import torch
from transformers import (AutoTokenizer, BertConfig, BertForMaskedLM, BertForPreTraining, BertTokenizer, BertTokenizerFast, pipeline)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from made_text import text_and_shards

BERTH = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/berth")
SIZES = ["model.hidden_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=4", "model.intermediate_size=128",
         "model.max_position_embeddings=48"]


def berth(*arguments):
    process = subprocess.run([BERTH, *arguments], capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"FAILED: berth {' '.join(arguments)}: {process.stderr}")
    return process.stdout


def train(folder, run, *more):
    with open(f"{folder}/empty.ini", "w"):
        pass
    berth("train", f"{folder}/empty.ini", f"data.train={folder}/shards/train", f"checkpoint.dir={run}", "train.steps=30",
          "train.global_batch=16", "optim.lr=2e-3", *more)
    return f"{run}/latest"


def load(path, kind):
    model, info = kind.from_pretrained(path, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value and key != "error_msgs"}
    assert not problems, f"{path}: {problems}"
    return model.eval()


def losses(model, folder, nsp):
    """MLM and NSP loss and accuracy over the held-out shards."""
    sums = numpy.zeros(4)
    masked = rows = 0
    for name in sorted(os.listdir(f"{folder}/shards/eval")):
        with h5py.File(f"{folder}/shards/eval/{name}") as shard:
            data = {key: torch.tensor(shard[key][:].astype("int64")) for key in shard}
        with torch.no_grad():
            output = model(input_ids=data["input_ids"], attention_mask=data["input_mask"], token_type_ids=data["segment_ids"])
        logits = output.prediction_logits if nsp else output.logits
        row, place = torch.nonzero(data["masked_lm_positions"], as_tuple=True)
        picked, labels = logits[row, data["masked_lm_positions"][row, place]], data["masked_lm_ids"][row, place]
        sums[0] += float(torch.nn.functional.cross_entropy(picked.double(), labels, reduction="sum"))
        sums[1] += int((picked.argmax(-1) == labels).sum())
        masked += len(labels)
        rows += len(data["input_ids"])
        if nsp:
            answer = output.seq_relationship_logits.double()
            sums[2] += float(torch.nn.functional.cross_entropy(answer, data["next_sentence_labels"], reduction="sum"))
            sums[3] += int((answer.argmax(-1) == data["next_sentence_labels"]).sum())
    result = {"mlm_loss": sums[0] / masked, "mlm_accuracy": sums[1] / masked, "masked_tokens": masked, "sequences": rows}
    if nsp:
        result.update(nsp_loss=sums[2] / rows, nsp_accuracy=sums[3] / rows)
    return result


def compare(path, folder, nsp, what):
    model = load(path, BertForPreTraining if nsp else BertForMaskedLM)
    theirs = losses(model, folder, nsp)
    ours = json.loads(berth("eval", path, f"data.eval={folder}/shards/eval", "--json"))
    for key, value in theirs.items():
        assert abs(ours[key] - value) <= 2e-5 * max(1, abs(value)), f"{what}: {key}: berth {ours[key]}, transformers {value}"
    assert ("nsp_loss" in ours) == nsp
    print(f"{what}: mlm_loss {ours['mlm_loss']:.6f} in both")


def check_tokenizer(path, cased):
    fast, slow = AutoTokenizer.from_pretrained(path), AutoTokenizer.from_pretrained(path, use_fast=False)
    assert isinstance(fast, BertTokenizerFast) and isinstance(slow, BertTokenizer)
    with open(f"{path}/vocab.txt") as file:
        assert len(file.read().splitlines()) == len(fast) == len(slow)
    for text in ("Bad gum, ABE: sib!", "[CLS] gum [MASK] .", "caf\u00e9 \u4e2d\u6587 gum"):
        assert fast(text)["input_ids"] == slow(text)["input_ids"], text
        plain = fast.tokenize("Gum")
        assert (plain == fast.tokenize("gum")) != cased, plain
    answer = pipeline("fill-mask", model=path)("gum [MASK] sib.")
    assert len(answer) == 5 and abs(answer[0]["score"]) <= 1


def check_case(folder, cased, nsp):
    os.makedirs(folder)
    text_and_shards(BERTH, folder, arguments=["--cased"] if cased else [])
    path = train(folder, f"{folder}/run", f"model.vocab={folder}/vocab.txt", f"model.nsp={'true' if nsp else 'false'}", *SIZES)
    with open(f"{path}/config.json") as file:
        assert json.load(file)["architectures"] == ["BertForPreTraining" if nsp else "BertForMaskedLM"]
    compare(path, folder, nsp, f"{'cased' if cased else 'uncased'}, nsp={nsp}")
    check_tokenizer(path, cased)
    return path


def check_round_trip(folder):
    """transformers -> berth (one step with a learning rate of 0) -> transformers: the same weights, bit for bit."""
    config = BertConfig(vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                        max_position_embeddings=48, hidden_act="gelu_new", initializer_range=0.1)
    torch.manual_seed(5)
    original = BertForPreTraining(config).eval()
    original.save_pretrained(f"{folder}/hf", safe_serialization=True)
    path = train(folder, f"{folder}/from-hf", f"model.init={folder}/hf", f"model.vocab={folder}/vocab.txt", "optim.lr=0",
                 "train.steps=1")
    after = load(path, BertForPreTraining)
    assert after.config.hidden_act == "gelu_new"
    for name, value in original.state_dict().items():
        if "position_ids" not in name:
            assert torch.equal(value, after.state_dict()[name]), name
    compare(path, folder, True, "started from a folder of transformers")


def main():
    folder = tempfile.mkdtemp(prefix="berth-transformers-")
    try:
        check_case(f"{folder}/uncased", cased=False, nsp=True)
        check_case(f"{folder}/cased", cased=True, nsp=False)
        check_round_trip(f"{folder}/uncased")
    finally:
        shutil.rmtree(folder)
    print("check_transformers: passed")


main()
