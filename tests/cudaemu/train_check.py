#!/usr/bin/env python3
"""train_check.py BERTH BERTH_EMU: twenty steps of a tiny BERT, dropout on, by the CPU backend and by the CUDA backend in the emulator.

The losses must be equal but for rounding, at every fusion level, in fp32, bf16 and fp16, with AdamW and with LAMB. Both run the
same function of the same seed: what differs is the order of sums, some 2^-24 of a value each (fp32), or what is stored between
two operators (bf16: 2^-9, fp16: 2^-12). The limits are
some ten times what was seen (3e-8, 1.1e-4 and 1e-5), a hundredth of what a wrong mask or gradient makes of the loss. In fp16 the
loss scale is too large at first: both must skip the same steps.

Then a run is resumed in which timing would choose other algorithms of products than before: with the choices that the run folder
keeps it must give the same bits, and without them others, or the check shows nothing."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from made_text import text_and_shards

# fusion level, precision, optimizer, steps, relative difference of the loss of a step
CASES = [("full", "fp32", "adamw", 20, 5e-7), ("full", "bf16", "lamb", 20, 2e-3), ("none", "fp32", "adamw", 4, 5e-7),
         ("paper", "bf16", "adamw", 4, 2e-3), ("full", "fp16", "adamw", 10, 1e-4), ("none", "fp16", "adamw", 10, 1e-4)]
RESUMED = ("full", "fp32", "adamw", 4, 0)


def train(program, device, folder, case, run, checkpoint_every=0, slow=None):
    fuse, precision, optimizer, steps, _ = case
    command = [program, "train", "configs/bert-tiny.ini", f"model.vocab={folder}/vocab.txt", f"data.train={folder}/shards/train",
               "data.seq_len=32", "train.global_batch=6", "train.micro_batch=3", f"train.steps={steps}",
               "optim.lr=1e-3", f"train.fuse={fuse}", f"train.precision={precision}", f"optim.name={optimizer}", f"checkpoint.every={checkpoint_every}",
               "optim.loss_scale=2097152", f"checkpoint.dir={run}", f"device.type={device}", "device.peak_tflops=1", "model.hidden_act=gelu_new"]
    environment = {**os.environ, **({"BERTH_EMU_SLOW": slow} if slow else {})}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        sys.exit(f"FAILED: {' '.join(command)}: exit {result.returncode}\n{result.stderr}")


def losses(program, device, folder, case):
    run = f"{folder}/{device}"
    shutil.rmtree(run, ignore_errors=True)
    train(program, device, folder, case, run)
    lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    return [line["loss"] for line in lines], [(line["skipped"], line.get("loss_scale")) for line in lines]


def weights_resumed(program, folder, run, kept):
    """Of a copy of the run that goes on from step 2."""
    copy = f"{run}-{'with' if kept else 'without'}"
    shutil.copytree(run, copy, symlinks=True)
    shutil.rmtree(f"{copy}/step-00000004")
    os.unlink(f"{copy}/latest")
    os.symlink("step-00000002", f"{copy}/latest")
    if not kept:
        os.unlink(f"{copy}/algorithms.json")
    train(program, "cuda", folder, RESUMED, copy, 2, "16")
    return open(f"{copy}/step-00000004/model.safetensors", "rb").read()


def check_resume(program, folder):
    run = f"{folder}/chosen"
    train(program, "cuda", folder, RESUMED, run, 2, "1")
    weights = open(f"{run}/step-00000004/model.safetensors", "rb").read()
    good = weights_resumed(program, folder, run, True) == weights != weights_resumed(program, folder, run, False)
    print(f"{'ok' if good else 'FAILED'}: resumed where products are timed otherwise: the same bits with algorithms.json only")
    return good


def main():
    program, emulated = sys.argv[1:3]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        text_and_shards(program, folder)
        for case in CASES:
            (ours, scales), (theirs, their_scales) = losses(program, "cpu", folder, case), losses(emulated, "cuda", folder, case)
            skipped = scales[0][0]
            worst = max(abs(a - b) / abs(a) for a, b in zip(ours, theirs))
            good = len(ours) == len(theirs) == case[3] and ours[-1] < ours[0] and worst <= case[-1]
            good = good and scales == their_scales and (skipped > 0) == (case[1] == "fp16")
            failed |= not good
            print(f"{'ok' if good else 'FAILED'}: fuse {case[0]}, {case[1]}, {case[2]}: {case[3]} steps, loss {ours[0]:.4f} to {ours[-1]:.4f}, "
                  f"largest relative difference {worst:.2g} (limit {case[-1]:.2g})" +
                  (f", {skipped} skipped first" if skipped else ""), flush=True)
        failed |= not check_resume(emulated, folder)
    sys.exit(failed)


main()
