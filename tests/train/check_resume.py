#!/usr/bin/env python3
"""A run that is killed and resumed ends where the undisturbed run ends: weights, moments, losses and metrics, bit for bit.

Usage: check_resume.py [path of berth]. Makes its own text. Kills with SIGKILL at many moments: at every file operation of a
checkpoint in turn (the fault hook of base/file.h), and at random times. Also: SIGTERM, SIGUSR1 and a time limit save and exit
with 3, changed data is refused or taken from the next epoch, an existing run folder is not overwritten. In fp16 steps are
skipped while the loss scale falls and grows, and the scale goes on where it stood; where no scale helps, the run ends with 1."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from made_text import text_and_shards

BERTH = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("BERTH", "build/berth"))
# Keys of metrics.jsonl that measure time; all others must agree to the bit.
TIMES = {"time", "elapsed", "sequences_per_s", "tokens_per_s", "padded_tokens_per_s", "mfu", "waited_share", "eval_sequences_per_s"}
STEPS = 40


def berth(*arguments, code=0, environment=None):
    process = subprocess.run([BERTH, *arguments], capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if code is not None and process.returncode != code:
        raise SystemExit(f"FAILED: berth {' '.join(arguments)}: exit {process.returncode}, expected {code}\n{process.stderr}")
    return process


def make_data(folder):
    text_and_shards(BERTH, folder)
    with open(f"{folder}/config.ini", "w") as config:
        config.write(f"""[model]
vocab = {folder}/vocab.txt
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 32
[data]
train = {folder}/shards/train
eval = {folder}/shards/eval
masking = dynamic
[train]
steps = {STEPS}
global_batch = 12
micro_batch = 5
eval_every = 10
[optim]
lr = 1e-3
warmup = 0.1
[checkpoint]
every = 5
keep = 3
""")


def command(data, run, *more):
    return ["train", f"{data}/config.ini", f"checkpoint.dir={run}", *more]


def lines_of(run):
    with open(f"{run}/metrics.jsonl") as file:
        return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in file]


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


def compare(straight, other, what):
    for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
        if bytes_of(f"{straight}/latest/{name}") != bytes_of(f"{other}/latest/{name}"):
            raise SystemExit(f"FAILED: {what}: {name} differs from the undisturbed run")
    if lines_of(straight) != lines_of(other):
        raise SystemExit(f"FAILED: {what}: metrics.jsonl differs from the undisturbed run")


def finish(data, run, *more):
    berth(*command(data, run, *more))


def kill_at_file_operations(data, straight, folder):
    """The process ends at the Nth file operation, for a spread of N over the whole run, then goes on."""
    count = 0
    for operation in list(range(1, 40, 3)) + list(range(40, 160, 17)):
        run = f"{folder}/fault-{operation}"
        process = berth(*command(data, run), code=None, environment={"BERTH_FAULT": f"{operation},crash"})
        if process.returncode == 0:
            break
        if process.returncode != 137:
            raise SystemExit(f"FAILED: a crash at file operation {operation} ended with {process.returncode}: {process.stderr}")
        finish(data, run)
        compare(straight, run, f"killed at file operation {operation}")
        shutil.rmtree(run)
        count += 1
    if count < 15:
        raise SystemExit(f"FAILED: only {count} file operations were hit")
    print(f"killed at {count} file operations, resumed: bit-identical")


def kill_at_random_times(data, straight, folder, duration):
    clock, kills = random.Random(3), 0
    for attempt in range(4):
        run = f"{folder}/kill-{attempt}"
        for _ in range(3):
            process = subprocess.Popen([BERTH, *command(data, run)], stderr=subprocess.DEVNULL)
            try:
                process.wait(clock.uniform(0, duration))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
        finish(data, run)
        compare(straight, run, "killed at random times")
        shutil.rmtree(run)
    print(f"killed {kills} times at random, resumed: bit-identical")


def stop_on_signal(data, straight, folder, number):
    run = f"{folder}/stop-{number}"
    process = subprocess.Popen([BERTH, *command(data, run)], stderr=subprocess.PIPE, text=True)
    while not os.path.exists(f"{run}/metrics.jsonl") or not lines_of(run):
        time.sleep(0.005)
    process.send_signal(number)
    message = process.communicate()[1]
    if process.returncode == 0:
        print(f"{signal.Signals(number).name}: SKIPPED, the run was over before the signal arrived")
        return
    if process.returncode != 3:
        raise SystemExit(f"FAILED: {signal.Signals(number).name} ended the run with {process.returncode}, expected 3\n{message}")
    done = lines_of(run)[-1]["step"]
    finish(data, run)
    compare(straight, run, f"stopped by {signal.Signals(number).name} after step {done}")
    print(f"{signal.Signals(number).name}: exit 3 after step {done}, resumed: bit-identical")


def half_precision(data, folder):
    """The scale doubles every 7 steps until it is too large, so that checkpoints lie inside of growth intervals."""
    settings = ("train.precision=fp16", "optim.loss_scale=131072", "optim.loss_scale_window=7")
    straight = f"{folder}/half"
    finish(data, straight, *settings)
    steps = [line for line in lines_of(straight) if "loss" in line]
    scales = [line["loss_scale"] for line in steps]
    skipped = [line["skipped"] for line in steps]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1)), steps
    assert skipped[0] == 0 and skipped[-1] > 0 and max(scales) > scales[0] == 131072, f"nothing is tested: {skipped}, {scales}"
    for a, b in zip(steps, steps[1:]):  # no step is lost: each skip halves, a growth doubles
        grown = b["loss_scale"] / a["loss_scale"] * 2 ** (b["skipped"] - a["skipped"])
        assert grown in (1, 2), f"from {a} to {b}"
    state = json.loads(bytes_of(f"{straight}/latest/trainer.json"))
    assert state["precision"] == "fp16" and state["loss_scale"] >= 1 and 0 <= state["loss_scale_steps"] < 7, state
    for operation in (20, 60, 100):
        run = f"{folder}/half-{operation}"
        berth(*command(data, run, *settings), code=137, environment={"BERTH_FAULT": f"{operation},crash"})
        finish(data, run, *settings)
        compare(straight, run, f"fp16, killed at file operation {operation}")
        again = json.loads(bytes_of(f"{run}/latest/trainer.json"))
        assert all(again[key] == state[key] for key in ("loss_scale", "loss_scale_steps", "skipped", "consumed", "epoch_consumed")), again
    process = berth(*command(data, f"{folder}/half-lost", *settings, "optim.lr=100", "optim.warmup=0", "optim.clip=0"), code=1)
    assert "skipped 10 times in a row with the smallest loss scale" in process.stderr, process.stderr
    print(f"fp16: {skipped[-1]} steps skipped, scale from {scales[0]:.0f} to {max(scales):.0f}, resumed: bit-identical; where no scale helps: exit 1")


def refusals(data, straight, folder):
    process = berth(*command(data, straight, "checkpoint.resume=never"), code=2)
    assert straight in process.stderr, process.stderr
    before = lines_of(straight)
    finish(data, straight)  # nothing left to do
    assert lines_of(straight) == before, "a finished run was touched"

    changed = f"{folder}/changed"
    shutil.copytree(f"{data}/shards", f"{changed}/shards")
    run = f"{folder}/changed-run"
    berth(*command(data, run, f"train.steps=10", f"data.train={changed}/shards/train"))
    os.remove(sorted(os.path.join(f"{changed}/shards/train", n) for n in os.listdir(f"{changed}/shards/train"))[0])
    berth("shard", "--input", f"{data}/text.txt", "--vocab", f"{data}/vocab.txt", "--output", f"{changed}/again", "--seq-len", "32",
          "--max-predictions", "5", "--held-out", "0.3", "--seed", "2")
    process = berth(*command(data, run, f"data.train={changed}/again/train"), code=2)
    assert "data.train" in process.stderr, process.stderr
    assert lines_of(run)[-1]["step"] == 10
    process = berth(*command(data, run, f"data.train={changed}/again/train", "data.on_change=next_epoch", "train.steps=12"))
    assert lines_of(run)[-1]["step"] == 12
    assert "data.train" in process.stderr and "train.steps" in process.stderr, "what changed is not printed:\n" + process.stderr
    print("changed data refused, or taken from the next epoch; existing runs kept")


def main():
    folder = tempfile.mkdtemp(prefix="berth-resume-")
    try:
        make_data(folder)
        straight = f"{folder}/straight"
        began = time.time()
        finish(folder, straight)
        duration = time.time() - began
        steps = [line["step"] for line in lines_of(straight) if "loss" in line]
        assert steps == list(range(1, STEPS + 1)), f"steps logged: {steps}"
        again = f"{folder}/again"
        finish(folder, again)
        compare(straight, again, "the same run twice")
        kill_at_file_operations(folder, straight, folder)
        kill_at_random_times(folder, straight, folder, duration)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            stop_on_signal(folder, straight, folder, number)
        limited = f"{folder}/limited"
        berth(*command(folder, limited, "train.max_minutes=0.00001"), code=3)
        finish(folder, limited)
        compare(straight, limited, "stopped by train.max_minutes")
        half_precision(folder, folder)
        refusals(folder, straight, folder)
    finally:
        shutil.rmtree(folder)
    print("check_resume: passed")


main()
