#!/usr/bin/env python3
"""Whole training steps of berth beside PyTorch's on this processor, in turn: `make bench-cpu [PEER=PYTHON] [CASES="base-128-bf16 …"]`.

Prints lines "step NAME berth_seq_per_s peer_seq_per_s ratio peer_name": medians over ROUNDS turns of the median step of each. A case is
SIZE-LENGTH-PRECISION[-THREADS]. The peer is transformers' BertForPreTraining with the MLM head on masked rows only, dropout 0.1, AdamW, on
the same sequences of full length; its fastest mode of eager, SDPA and torch.compile (where that PyTorch and this machine have them) is what
counts, found by a trial before the turns. PEER is a Python that imports torch and transformers (default: build/venv's, Debian's torch)."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SIZES = {"mini": dict(layers=4, hidden=256, heads=4, batch=16), "base": dict(layers=12, hidden=768, heads=12, batch=8)}
VOCABULARY, ROUNDS, STEPS = 30522, 3, 4
MODES = ("eager", "sdpa", "compile")


def peer_main(case, mode):
    """In the peer's process: prints sequences/s of the median step after the first."""
    import time

    import torch
    import transformers

    size, length, precision, threads = case
    shape = SIZES[size]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=VOCABULARY, hidden_size=shape["hidden"], num_hidden_layers=shape["layers"],
                                     num_attention_heads=shape["heads"], intermediate_size=4 * shape["hidden"])
    config._attn_implementation = "eager" if mode == "eager" else "sdpa"
    if mode == "compile" and not hasattr(torch, "compile"):
        sys.exit("this PyTorch has no torch.compile")
    model = transformers.BertForPreTraining(config)
    if mode != "eager" and model.config._attn_implementation != "sdpa":
        sys.exit("this transformers has no SDPA for BERT")
    model.train()
    batch = shape["batch"] * 128 // length or 1
    masked = round(0.15 * length)
    ids = torch.randint(5, VOCABULARY, (batch, length))
    rows = torch.stack([torch.randperm(length)[:masked].sort()[0] + n * length for n in range(batch)]).flatten()
    labels, nsp, ones = torch.randint(5, VOCABULARY, (batch * masked,)), torch.randint(0, 2, (batch,)), torch.ones(batch, length)
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    except (TypeError, RuntimeError):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss_of():
        out = model.bert(ids, attention_mask=ones)
        sequence, pooled = out[0], out[1]
        picked = sequence.reshape(-1, sequence.shape[-1])[rows]
        logits, relation = model.cls.predictions(picked), model.cls.seq_relationship(pooled)
        return torch.nn.functional.cross_entropy(logits.float(), labels) + torch.nn.functional.cross_entropy(relation.float(), nsp)

    if mode == "compile":
        loss_of = torch.compile(loss_of)
    times = []
    for _ in range(STEPS + (mode == "compile")):
        began = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - began)
    print(batch / statistics.median(times[1 + (mode == "compile"):]), torch.__version__)


def run_peer(python, case, mode):
    environment = dict(os.environ, OMP_NUM_THREADS=str(case[3]))
    if "avx512f" in open("/proc/cpuinfo").read():
        environment.setdefault("OPENBLAS_CORETYPE", "SkylakeX")  # else Debian's OpenBLAS takes new processors for old ones
    run = subprocess.run([python, __file__, "--peer", json.dumps([case, mode])], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode:
        return None, run.stderr.strip().split("\n")[-1]
    rate, version = run.stdout.split()[-2:]
    return float(rate), version


def run_berth(berth, folder, case, shards):
    size, length, precision, threads = case
    shape = SIZES[size]
    batch = shape["batch"] * 128 // length or 1
    run = f"{folder}/run"
    subprocess.run(["rm", "-rf", run], check=True)
    with open(f"{folder}/bench.ini", "w") as file:
        file.write(f"[model]\nvocab_size = {VOCABULARY}\nhidden_size = {shape['hidden']}\nnum_hidden_layers = {shape['layers']}\n"
                   f"num_attention_heads = {shape['heads']}\nintermediate_size = {4 * shape['hidden']}\n[data]\ntrain = {shards}\n"
                   f"[train]\nsteps = {STEPS}\nglobal_batch = {batch}\nmicro_batch = {batch}\nprecision = {'bf16' if precision == 'bf16' else 'fp32'}\n"
                   f"[optim]\nname = adamw\nlr = 1e-4\n[checkpoint]\nevery = 0\n[device]\nthreads = {threads}\npeak_tflops = 1\n")
    result = subprocess.run([berth, "train", f"{folder}/bench.ini", f"checkpoint.dir={run}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit(f"berth train ended with {result.returncode}: {result.stderr.strip()}")
    rates = [json.loads(line)["sequences_per_s"] for line in open(f"{run}/metrics.jsonl")]
    return statistics.median(rates[1:])


def make_shards(path, length):
    """Random sequences of full length, in NVIDIA's form, written by h5py."""
    import h5py
    import numpy

    draw, rows, masked = numpy.random.default_rng(1), 512, round(0.15 * length)
    with h5py.File(path, "w") as file:
        file["input_ids"] = draw.integers(5, VOCABULARY, (rows, length), "i4")
        file["input_mask"] = numpy.ones((rows, length), "i1")
        file["segment_ids"] = numpy.zeros((rows, length), "i1")
        file["masked_lm_positions"] = (1 + numpy.sort(numpy.argsort(draw.random((rows, length - 1)), axis=1)[:, :masked], axis=1)).astype("i4")
        file["masked_lm_ids"] = draw.integers(5, VOCABULARY, (rows, masked), "i4")
        file["next_sentence_labels"] = draw.integers(0, 2, rows, "i1")


def compare(name, options, folder):
    size, length, precision, *threads = name.split("-")
    case = (size, int(length), precision, int(threads[0]) if threads else len(os.sched_getaffinity(0)))
    shards = f"{folder}/{length}.hdf5"
    if not os.path.exists(shards):
        make_shards(shards, case[1])
    best, best_mode, version = 0, None, ""
    for mode in MODES:
        rate, said = run_peer(options.python, case, mode)
        if rate is None:
            print(f"note: {name}: the peer cannot run {mode}: {said}", flush=True)
        elif rate > best:
            best, best_mode, version = rate, mode, said
    if not best_mode:
        sys.exit(f"{name}: no mode of the peer runs with {options.python}")
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(run_berth(options.berth, folder, case, shards))
        theirs.append(run_peer(options.python, case, best_mode)[0])
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"step {name} {a:.2f} {b:.2f} {a / b:.2f} torch-{version}-{best_mode}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("berth", nargs="?")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        peer_main(*json.loads(options.peer))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in options.cases or ["mini-128-fp32", "mini-128-bf16", "base-128-fp32", "base-128-bf16", "base-512-fp32", "base-512-bf16"]:
            compare(name, options, folder)


main()
