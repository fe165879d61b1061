#!/usr/bin/env python3
"""The command line: help of every subcommand, version, exit codes, and that wrong input is named before any work starts.

Usage: check_cli.py [path of berth]."""
import json
import os
import re
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from made_text import text_and_shards

BERTH = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/berth")


def berth(*arguments, code=0, stdout=subprocess.PIPE):
    process = subprocess.run([BERTH, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True)
    if process.returncode != code:
        sys.exit(f"FAILED: berth {' '.join(arguments)}: exit {process.returncode}, expected {code}\n{process.stderr}")
    return process


def refused(*arguments, says, code=2):
    message = berth(*arguments, code=code).stderr
    assert message.startswith("berth: ") and message.count("\n") == 1, f"not one line: {message!r}"
    assert re.search(says, message), f"berth {' '.join(arguments)}: {message!r} does not say {says!r}"


help_text = berth("--help").stdout
commands = re.findall(r"^  ([a-z]+) ", help_text, re.M)
assert {"vocab", "shard", "train", "eval", "inspect", "analyze", "bench", "config"} <= set(commands), commands
for command in commands:
    text = berth(command, "--help").stdout
    assert "usage: berth " + command in text.lower(), f"berth {command} --help: {text!r}"
assert re.fullmatch(r"berth \d+\.\d+\.\d+( \(.+\))?\n", berth("--version").stdout)

refused(says="no command given")
refused("trian", says="unknown command 'trian', did you mean 'train'")
refused("train", says="no settings file given")
refused("train", "/nonexistent.ini", says="/nonexistent.ini: cannot open")
refused("vocab", "--inptu", "x", says="--inptu.*--input")
refused("eval", "/nonexistent", "data.eval=x", says="/nonexistent")

table = berth("config").stdout
for key in ("hidden_size", "global_batch", "schedule", "resume"):
    assert f"\n  {key} " in table, key

with tempfile.TemporaryDirectory() as folder:
    ini, run = f"{folder}/my.ini", f"{folder}/run"
    with open(ini, "w") as file:
        file.write(f"[train]\nsteps = 20\n[checkpoint]\ndir = {run}\n")
    listing = berth("config", ini, "optim.lr=2e-3").stdout
    assert re.search(r"^  steps +20 +.*my\.ini:2$", listing, re.M) and re.search(r"^  lr +0\.002 +command line$", listing, re.M), listing
    assert re.search(r"^  seed +42 +default$", listing, re.M), listing
    refused("train", ini, "train.stepz=3", says=r"argument 'train.stepz=3': unknown key.*nearest: train.steps")
    refused("train", ini, "train.steps=0", says=r"train.steps = '0': expected whole number, at least 1")
    refused("train", ini, f"data.train={folder}/none.hdf5", says=re.escape(f"{folder}/none.hdf5"))
    with open(ini, "a") as file:
        file.write("evry = 3\n")
    refused("train", ini, says=r"my\.ini:5: unknown key 'checkpoint.evry'; nearest: checkpoint.every")
    # shards made with another vocabulary than the model's
    text_and_shards(BERTH, folder)
    berth("vocab", "--input", f"{folder}/text.txt", "--size", "200", "--output", f"{folder}/200.txt")
    tiny = [os.path.join(os.path.dirname(__file__), "../../configs/bert-tiny.ini"), f"checkpoint.dir={run}", f"data.train={folder}/shards/train", "data.eval="]
    refused("train", *tiny, f"model.vocab={folder}/200.txt", says="train_training_0000.hdf5: was made with a vocabulary of 300 entries, but that of the model has 200")
    refused("train", *tiny, "model.vocab=", "model.vocab_size=200", says="of 300 entries, more than model.vocab_size = 200")
    # a device that is not there; a build with CUDA loads cuBLASLt first
    if "\ncuda: no device can be used" in table or "\ncuda: not in this build\n" in table:
        says = "built without CUDA" if "not in this build" in table else "no CUDA device can be used"
        refused("train", *tiny, f"model.vocab={folder}/vocab.txt", "device.type=cuda", says=says)
    else:
        print("skipped: device.type=cuda on a machine without a device")
    assert not os.path.exists(run), f"wrong input left {os.listdir(run)} in a run folder"

# what a step moves. BERT-large at 8 sequences of 512 tokens, in units of t = tokens * hidden 16-bit words: an unfused layer moves
# 155 t, 22 attention matrices of 8 t (a dropout mask, of bytes, is half of one), and 48 matrices of hidden * hidden (of
# 0.25 t), 24 of them as 12 gradients in fp32. The paper's eager framework with separate biases, 356 t, copies heads too (16 t) and
# writes gradients in 16 bits (3 t less).
large = os.path.join(os.path.dirname(__file__), "../../configs/bert-large-phase2.ini")
rates = ["device.peak_tflops=1", "device.bandwidth_gbs=100"]
with tempfile.TemporaryDirectory() as folder:
    report = json.loads(berth("analyze", large, *rates, "--batch", "8", "--json", "--memory", "16", "--svg", f"{folder}/a.svg",
                              "--dot", f"{folder}/a.dot").stdout)
    ElementTree.parse(f"{folder}/a.svg")
    assert open(f"{folder}/a.dot").read().startswith('digraph "encoder layer" {')
    refused("analyze", large, *rates, "--svg", folder, says=re.escape(folder) + ": is there and not a file")
    refused("analyze", large, *rates, "--svg", f"{folder}/none/a.svg", says=re.escape(f"{folder}/none/a.svg"), code=1)
t, levels, rows = report["t_bytes"], report["levels"], report["operators"]
assert t == 8 * 512 * 1024 * 2 and report["device"]["flops"] == 1e12 and report["device"]["bytes_per_s"] == 1e11
expected = 155 + 8 * 22 + 0.25 * 48
assert abs(expected - 356) < 0.05 * 356
assert abs(levels["none"]["layer_bytes"] / t - expected) < 0.001 * expected, levels["none"]["layer_bytes"] / t
assert abs(report["eager"]["layer_bytes"] / t - (expected - 18)) < 0.001 * expected
for level in ("none", "paper", "full"):
    of = [row for row in rows if row["level"] == level]
    assert {"name", "class", "flop", "bytes_in", "bytes_out", "count"} <= set(of[0])
    assert sum(row["bytes_in"] + row["bytes_out"] for row in of) == levels[level]["step_bytes"]
    assert sum(row["flop"] for row in of) == levels[level]["step_flop"]
    assert levels[level]["layer_bytes"] <= levels["none"]["layer_bytes"]
    assert {row["level"] for row in report["layer_operators"]} == {"none", "paper", "full"}
    # erf GELU on CUDA: h read again, the gradient written and read again, of 4 t each
    assert levels[level]["layer_erf_gelu_bytes_on_cuda"] == (12 * t if level == "full" else 0)
    assert levels[level]["peak_memory_bytes"] < 16e9 and levels[level]["largest_micro_batch"] >= 8
text = berth("analyze", large, rates[0], "--batch", "8", rates[1], "--level", "none").stdout
assert "1.000 Tflop/s (given), 100.0 GB/s (given)" in text, text
assert re.search(r"^linear +forward +contraction +6 +103\.079 +100\.\d+ +75\.\d+ +21\.00 +\d+\.\d+ compute ", text, re.M), text
# --measure runs what --json counts
tiny = [os.path.join(os.path.dirname(__file__), "../../configs/bert-tiny.ini"), "model.vocab_size=500"]
report = json.loads(berth("analyze", *tiny, *rates, "--batch", "2", "--seq-len", "16", "--json", "--measure").stdout)
assert report["measured"] and all(row["level"] == "full" for row in report["measured"])
assert sum(row.get("seconds", 0) for row in report["measured"]) > 0
# bench runs as many steps as it says, and its rates are of one time
line = berth("bench", *tiny, rates[0], "--batch", "2", "--seq-len", "16", "--steps", "2").stdout
assert re.search(r"^2 x 16 tokens, median of 2 steps: \d+\.\d+ sequences/s, \d+ tokens/s, MFU \d+\.\d % of 1\.0 Tflop/s, 0\.\d+ GB planned$", line, re.M), line
# words may stand between options
report = json.loads(berth("bench", "--json", "--batch", "2", tiny[0], "--seq-len", "16", tiny[1], "--steps", "3", rates[0]).stdout)
assert report["micro_batch"] == 2 and report["seq_len"] == 16 and report["steps"] == 3 and 0 < report["mfu"] < 1
assert abs(report["sequences_per_s"] * report["step_seconds"] - 2) < 1e-9 and abs(report["tokens_per_s"] / report["sequences_per_s"] - 16) < 1e-9
planned = json.loads(berth("analyze", *tiny, *rates, "--batch", "2", "--seq-len", "16", "--json").stdout)["levels"]["full"]["peak_memory_bytes"]
assert abs(report["memory_bytes"] - planned) < 1e6, (report["memory_bytes"], planned)  # but for the table of learning rates
refused("bench", says="no settings file given")
refused("bench", "--steps", "1", *tiny, "word", says="argument 'word': expected section.key=value")
refused("bench", *tiny, "--steps", "0", says="--steps is \"0\", expected a whole number from 1")
refused("bench", *tiny, "--seq-len", "1024", says="--seq-len is 1024, but model.max_position_embeddings")
refused("analyze", says="no settings file given")
refused("analyze", large, "--level", "most", says='--level is "most", expected none, paper or full')
refused("analyze", large, "--batch", "x", says='--batch is "x", expected a whole number')
refused("analyze", large, "--seq-len", "1024", says="--seq-len is 1024, but model.max_position_embeddings = 512")
refused("analyze", large, "--max-predictions", "600", says="--max-predictions is 600, but a sequence has 512 tokens")
refused("analyze", large, "--memroy", "3", says="--memroy.*--memory")
refused("analyze", large, "device.bandwidth_gbs=-1", says="device.bandwidth_gbs = '-1'")
refused("analyze", large, "--batch", "8", "--svg", says="--svg needs a value")

if os.path.exists("/dev/full"):  # a full disk: what was printed did not arrive, so the command failed
    with open("/dev/full", "w") as full:
        for arguments in (["config"], ["--version"]):
            berth(*arguments, code=1, stdout=full)
print("command line: as expected")
