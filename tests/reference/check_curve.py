#!/usr/bin/env python3
"""200 steps of a BERT-mini, dropout 0, from the same start weights and on the same batches: berth's loss curve against PyTorch's.

Usage: check_curve.py [path of berth]. The batch of every step is the whole training set (so the order of samples cannot matter
but for rounding). How close two right programs stay is taken from PyTorch itself: the same run with its sequences in another
order, which changes nothing but rounding. berth may stray ten times as far, or 1e-4 of the loss, whichever is more.
In fp16 it may stray from its own fp32 curve a quarter as far as in bf16, on average: fp16 rounds to three bits more, an eighth."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import h5py
import torch
from transformers import BertConfig, BertForPreTraining

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from made_text import text_and_shards

BERTH = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/berth")
STEPS, RATE, WARMUP = 200, 5e-4, 20


def rate(t):
    return RATE * (t / WARMUP if t <= WARMUP else (STEPS - t) / (STEPS - WARMUP))


def read(folder):
    data = {}
    for name in sorted(os.listdir(folder)):
        with h5py.File(f"{folder}/{name}") as shard:
            for key in shard:
                data.setdefault(key, []).append(torch.tensor(shard[key][:].astype("int64")))
    return {key: torch.cat(parts) for key, parts in data.items()}


def torch_curve(path, data, order):
    data = {key: value[order] for key, value in data.items()}
    model = BertForPreTraining.from_pretrained(path).train()
    decay = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=RATE, eps=1e-6)
    row, place = torch.nonzero(data["masked_lm_positions"], as_tuple=True)
    position, labels = data["masked_lm_positions"][row, place], data["masked_lm_ids"][row, place]
    curve = []
    for t in range(1, STEPS + 1):
        output = model(input_ids=data["input_ids"], attention_mask=data["input_mask"], token_type_ids=data["segment_ids"])
        loss = torch.nn.functional.cross_entropy(output.prediction_logits[row, position], labels) + \
            torch.nn.functional.cross_entropy(output.seq_relationship_logits, data["next_sentence_labels"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(t)
        optimizer.step()
        curve.append(float(loss))
    return curve


def berth_curve(folder, count, precision):
    run = f"{folder}/{precision}"
    subprocess.run([BERTH, "train", f"{folder}/empty.ini", f"model.init={folder}/start", f"model.vocab={folder}/vocab.txt",
                    f"data.train={folder}/shards/train", f"checkpoint.dir={run}", f"train.steps={STEPS}", f"train.precision={precision}",
                    f"train.global_batch={count}", "train.micro_batch=32", f"optim.lr={RATE}", f"optim.warmup_steps={WARMUP}",
                    "model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"], check=True, stderr=subprocess.DEVNULL)
    with open(f"{run}/metrics.jsonl") as file:
        return [json.loads(line)["loss"] for line in file]


def main():
    folder = tempfile.mkdtemp(prefix="berth-curve-")
    try:
        text_and_shards(BERTH, folder, seq_len=16, predictions=3, documents=3)
        data = read(f"{folder}/shards/train")
        count = len(data["input_ids"])
        torch.manual_seed(3)
        config = BertConfig(vocab_size=300, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
                            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        BertForPreTraining(config).save_pretrained(f"{folder}/start", safe_serialization=True)
        with open(f"{folder}/empty.ini", "w"):
            pass
        curves = {precision: berth_curve(folder, count, precision) for precision in ("fp32", "bf16", "fp16")}
        ours = curves["fp32"]
        theirs = torch_curve(f"{folder}/start", data, torch.arange(count))
        again = torch_curve(f"{folder}/start", data, torch.arange(count - 1, -1, -1))
    finally:
        shutil.rmtree(folder)
    assert len(ours) == STEPS
    noise = max(abs(a - b) / a for a, b in zip(theirs, again))
    error = max(abs(a - b) / a for a, b in zip(theirs, ours))
    print(f"{count} sequences; loss {theirs[0]:.4f} -> {theirs[-1]:.4f} (berth {ours[-1]:.4f}); largest relative difference {error:.1e}, "
          f"of PyTorch to itself {noise:.1e}")
    assert theirs[-1] < 0.8 * theirs[0], "nothing was learned: the curves prove little"
    assert error <= max(10 * noise, 1e-4)
    bf16, fp16 = (sum(abs(a - b) / a for a, b in zip(ours, curves[p])) / STEPS for p in ("bf16", "fp16"))
    print(f"mean relative difference to fp32: bf16 {bf16:.1e}, fp16 {fp16:.1e}")
    assert len(curves["fp16"]) == STEPS and fp16 <= bf16 / 4
    print("check_curve: passed")


main()
