#!/usr/bin/env python3
"""The command line: help of every subcommand, version, exit codes, and that wrong input is named before any work starts.

Usage: check_cli.py [path of berth]."""
import os
import re
import subprocess
import sys
import tempfile

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
assert {"vocab", "shard", "train", "eval", "inspect", "config"} <= set(commands), commands
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
    assert not os.path.exists(run), f"wrong input left {os.listdir(run)} in a run folder"

if os.path.exists("/dev/full"):  # a full disk: what was printed did not arrive, so the command failed
    with open("/dev/full", "w") as full:
        for arguments in (["config"], ["--version"]):
            berth(*arguments, code=1, stdout=full)
print("command line: as expected")
