#!/usr/bin/env python3
"""Whole training steps beside PyTorch's: `make bench-cpu [PEER=PYTHON] [CASES="base-128-bf16 …"]`, and the PyTorch side of scripts/gpu_check.sh.

bench_step.py BERTH [CASE...]       in turn on this processor; prints "step NAME berth_seq_per_s peer_seq_per_s ratio peer_name": medians over
                                    ROUNDS turns of the median step of each, against the peer's fastest mode, found by a trial before the turns
bench_step.py --rates [CASE...]     the peer alone, on the GPU; prints "peer NAME MODE seq_per_s version" for each mode that runs
bench_step.py --pretrain FOLDER     BERTH and the peer pretrain from the same weights on the same batches; the curves go to FOLDER

A case is SIZE-LENGTH[r]-PRECISION[-THREADS][@BATCH]. The peer is transformers' BertForPreTraining with the MLM head on masked rows only, dropout
0.1, AdamW (fused where it is), on sequences of full length; its modes are eager attention, SDPA, and torch.compile of SDPA, as far as
that PyTorch and this machine have them. With r, the sequences of a batch have lengths evenly spread up to LENGTH, and the peer pads them. --python is a Python that imports torch and transformers (default: this one)."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"tiny": dict(layers=2, hidden=128, heads=2, batch=32), "mini": dict(layers=4, hidden=256, heads=4, batch=16),
         "base": dict(layers=12, hidden=768, heads=12, batch=8), "large": dict(layers=24, hidden=1024, heads=16, batch=4)}
VOCABULARY, ROUNDS = 30522, 3
STEPS = {"cpu": 4, "cuda": 20}  # the first of them warm up
WARM_UP = {"cpu": 1, "cuda": 5}
MODES = ("eager", "sdpa", "compile")


class Case:
    """What is timed, from its name; batch: on a processor, SIZES' at length 128 and as many tokens at others."""

    def __init__(self, name, device):
        self.name, self.device = name, device
        words, _, batch = name.partition("@")
        size, length, self.precision, *threads = words.split("-")
        self.shape, self.length, self.ragged = SIZES[size], int(length.rstrip("r")), length.endswith("r")
        self.threads = int(threads[0]) if threads else len(os.sched_getaffinity(0))
        self.batch = int(batch) if batch else self.shape["batch"] * 128 // self.length or 1

    def lengths(self):
        """Of a batch's sequences."""
        return [self.length * (n + 1) // self.batch if self.ragged else self.length for n in range(self.batch)]

    def masked(self):
        return [round(0.15 * n) for n in self.lengths()]


# --- the peer ---


def peer_config(shape, mode, vocabulary=VOCABULARY, dropout=0.1):
    import transformers

    config = transformers.BertConfig(vocab_size=vocabulary, hidden_size=shape["hidden"], num_hidden_layers=shape["layers"],
                                     num_attention_heads=shape["heads"], intermediate_size=4 * shape["hidden"],
                                     hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    config._attn_implementation = "eager" if mode == "eager" else "sdpa"
    return config


def peer_loss(model, ids, mask, types, rows, labels, nsp):
    """berth's loss: means over masked tokens and over sequences. The vocabulary's product is made for masked rows alone."""
    import torch

    sequence, pooled = model.bert(ids, attention_mask=mask, token_type_ids=types)[:2]
    picked = sequence.reshape(-1, sequence.shape[-1])[rows]
    logits, relation = model.cls.predictions(picked), model.cls.seq_relationship(pooled)
    return torch.nn.functional.cross_entropy(logits.float(), labels) + torch.nn.functional.cross_entropy(relation.float(), nsp)


def peer_optimizer(groups, **options):
    import torch

    try:
        return torch.optim.AdamW(groups, fused=True, **options)
    except (TypeError, RuntimeError):
        return torch.optim.AdamW(groups, **options)


class Stepper:
    """One training step of the peer: forward in autocast, backward, clipping, update."""

    def __init__(self, model, optimizer, device, precision, compiled):
        import torch

        self.model, self.optimizer, self.device, self.bf16 = model, optimizer, device, precision == "bf16"
        self.loss = torch.compile(peer_loss) if compiled else peer_loss

    def step(self, batch):
        import torch

        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.bf16):
            loss = self.loss(self.model, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def random_batch(case):
    import torch

    ids = torch.randint(5, VOCABULARY, (case.batch, case.length))
    rows = torch.cat([torch.randperm(length)[:masked].sort()[0] + n * case.length
                      for n, (length, masked) in enumerate(zip(case.lengths(), case.masked()))])
    labels, nsp = torch.randint(5, VOCABULARY, (len(rows),)), torch.randint(0, 2, (case.batch,))
    # no attention mask where sequences are of full length: kernels without one are the faster ones
    mask = (torch.arange(case.length)[None] < torch.tensor(case.lengths())[:, None]).long() if case.ragged else None
    return [None if t is None else t.to(case.device) for t in (ids, mask, torch.zeros_like(ids), rows, labels, nsp)]


def peer_main(name, device, mode):
    """In the peer's process: prints sequences/s of the median step after the warm-up, and PyTorch's version."""
    import torch
    import transformers

    case = Case(name, device)
    torch.set_num_threads(case.threads)
    torch.manual_seed(1)
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("this PyTorch sees no GPU")
    if mode == "compile" and not hasattr(torch, "compile"):
        sys.exit("this PyTorch has no torch.compile")
    model = transformers.BertForPreTraining(peer_config(case.shape, mode)).to(device).train()
    if mode != "eager" and model.config._attn_implementation != "sdpa":
        sys.exit("this transformers has no SDPA for BERT")
    stepper = Stepper(model, peer_optimizer(model.parameters(), lr=1e-4), device, case.precision, mode == "compile")
    batch, times = random_batch(case), []
    warm_up = WARM_UP[device] + (mode == "compile")
    for _ in range(STEPS[device] + (mode == "compile")):
        began = time.perf_counter()
        stepper.step(batch)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    print(case.batch / statistics.median(times[warm_up:]), torch.__version__)


def run_peer(python, case, mode):
    """(sequences/s, version), or (None, why not)."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(case.threads))
    if "avx512f" in open("/proc/cpuinfo").read():
        environment.setdefault("OPENBLAS_CORETYPE", "SkylakeX")  # else Debian's OpenBLAS takes new processors for old ones
    run = subprocess.run([python, __file__, "--peer", json.dumps([case.name, case.device, mode])], env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    if run.returncode:
        return None, (run.stderr.strip() or f"exit code {run.returncode}").split("\n")[-1]
    rate, version = run.stdout.split()[-2:]
    return float(rate), version


# --- in turn on the processor ---


def run_berth(berth, folder, case, shards):
    shape, run = case.shape, f"{folder}/run"
    subprocess.run(["rm", "-rf", run], check=True)
    with open(f"{folder}/bench.ini", "w") as file:
        file.write(f"[model]\nvocab_size = {VOCABULARY}\nhidden_size = {shape['hidden']}\nnum_hidden_layers = {shape['layers']}\n"
                   f"num_attention_heads = {shape['heads']}\nintermediate_size = {4 * shape['hidden']}\n[data]\ntrain = {shards}\n"
                   f"[train]\nsteps = {STEPS['cpu']}\nglobal_batch = {case.batch}\nmicro_batch = {case.batch}\n"
                   f"precision = {'bf16' if case.precision == 'bf16' else 'fp32'}\n[optim]\nname = adamw\nlr = 1e-4\n[checkpoint]\nevery = 0\n"
                   f"[device]\ntype = cpu\nthreads = {case.threads}\npeak_tflops = 1\n")
    result = subprocess.run([berth, "train", f"{folder}/bench.ini", f"checkpoint.dir={run}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit(f"berth train ended with {result.returncode}: {result.stderr.strip()}")
    # steps hold the batches' sequences in another order: by tokens, those of other lengths count as what they are
    rates = [json.loads(line)["tokens_per_s"] / statistics.mean(case.lengths()) for line in open(f"{run}/metrics.jsonl")]
    return statistics.median(rates[WARM_UP["cpu"]:])


def make_shards(path, case):
    """Random sequences in NVIDIA's form, written by h5py: batch after batch of the case's lengths."""
    import h5py
    import numpy

    draw, rows, most = numpy.random.default_rng(1), case.batch * STEPS["cpu"], max(case.masked())
    lengths, masked = (numpy.array(values * STEPS["cpu"]) for values in (case.lengths(), case.masked()))
    there = numpy.arange(case.length)[None] < lengths[:, None]
    positions, labels = numpy.zeros((rows, most), "i4"), numpy.zeros((rows, most), "i4")
    for row in range(rows):
        positions[row, :masked[row]] = 1 + numpy.sort(draw.permutation(lengths[row] - 1)[:masked[row]])
        labels[row, :masked[row]] = draw.integers(5, VOCABULARY, masked[row])
    with h5py.File(path, "w") as file:
        file["input_ids"] = draw.integers(5, VOCABULARY, there.shape, "i4") * there
        file["input_mask"] = there.astype("i1")
        file["segment_ids"] = numpy.zeros(there.shape, "i1")
        file["masked_lm_positions"] = positions
        file["masked_lm_ids"] = labels
        file["next_sentence_labels"] = draw.integers(0, 2, rows, "i1")


def compare(name, options, folder):
    case = Case(name, "cpu")
    shards = f"{folder}/{name}.hdf5"
    make_shards(shards, case)
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


def rates(options):
    for name in options.words:
        for mode in MODES:
            rate, said = run_peer(options.python, Case(name, options.device), mode)
            print(f"note: {name}: the peer cannot run {mode}: {said}" if rate is None else f"peer {name} {mode} {rate:.2f} {said}", flush=True)


# --- pretraining from the same weights on the same batches ---

RATE, WARM_UP_STEPS, SMOOTH = 1e-4, 100, 20


def optimizer_options(options, start):
    return {"model.init": start, "model.vocab": options.vocab, "data.train": options.shards, "train.global_batch": options.batch,
            "train.micro_batch": options.batch, "train.steps": options.steps, "train.max_minutes": options.minutes, "train.seed": 42,
            "train.precision": options.precision, "optim.name": "adamw", "optim.lr": RATE, "optim.schedule": "constant",
            "optim.warmup_steps": WARM_UP_STEPS,
            "model.hidden_dropout_prob": options.dropout, "model.attention_probs_dropout_prob": options.dropout, "checkpoint.dir": f"{options.pretrain}/run", "checkpoint.every": 0, "device.type": options.device}


def berth_curve(options, start):
    """(losses, sequences/s of the median step); a run that its time limit ended (3) is as good as one that took all steps."""
    settings = f"{options.pretrain}/pretrain.ini"
    open(settings, "w").close()
    subprocess.run(["rm", "-rf", f"{options.pretrain}/run"], check=True)
    overrides = [f"{key}={value}" for key, value in optimizer_options(options, start).items()]
    code = subprocess.run([options.berth, "train", settings, *overrides]).returncode
    if code not in (0, 3):
        sys.exit(f"berth train ended with {code}")
    lines = [json.loads(line) for line in open(f"{options.pretrain}/run/metrics.jsonl")]
    return [line["loss"] for line in lines], statistics.median(line["sequences_per_s"] for line in lines)


class Shards:
    """The rows of berth's shards, in the order that berth takes them."""

    def __init__(self, options, samples):
        import h5py

        text = subprocess.run([options.berth, "inspect", options.shards, "--order", str(samples), "--seed", "42"], check=True, stdout=subprocess.PIPE,
                              text=True).stdout
        self.order = [(path, int(row)) for path, _, row in (line.rpartition(" ") for line in text.splitlines())]
        self.files = {}
        for path in {path for path, _ in self.order}:
            with h5py.File(path) as file:
                self.files[path] = {key: file[key][:] for key in file}

    def batch(self, step, size, device):
        """ids, mask, types, rows, labels, nsp: what peer_loss takes."""
        import numpy
        import torch

        samples = self.order[step * size:(step + 1) * size]
        rows = {key: torch.from_numpy(numpy.stack([self.files[path][key][row] for path, row in samples]).astype("int64"))
                for key in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")}
        sequence, place = torch.nonzero(rows["masked_lm_positions"], as_tuple=True)
        masked = sequence * rows["input_ids"].shape[1] + rows["masked_lm_positions"][sequence, place]
        whole = (rows["input_ids"], rows["input_mask"], rows["segment_ids"], masked, rows["masked_lm_ids"][sequence, place], rows["next_sentence_labels"])
        return [tensor.to(device) for tensor in whole]


def peer_curve(options, start, steps):
    import torch
    import transformers

    model = transformers.BertForPreTraining.from_pretrained(start, attn_implementation="sdpa").to(options.device).train()
    kinds = {True: [], False: []}
    for name, parameter in model.named_parameters():
        kinds[name.endswith("bias") or "LayerNorm" in name].append(parameter)
    optimizer = peer_optimizer([{"params": kinds[False], "weight_decay": 0.01}, {"params": kinds[True], "weight_decay": 0.0}], lr=RATE, eps=1e-6)
    stepper = Stepper(model, optimizer, options.device, options.precision, False)
    shards, losses, times, end = Shards(options, steps * options.batch), [], [], time.monotonic() + 60 * options.minutes
    for step in range(steps):
        batch, began = shards.batch(step, options.batch, options.device), time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP_STEPS)
        losses.append(float(stepper.step(batch)))  # the number waits for the device
        times.append(time.perf_counter() - began)
        if time.monotonic() > end:
            break
    return losses, options.batch / statistics.median(times)


def smooth(curve):
    return [statistics.fmean(curve[max(0, i + 1 - SMOOTH):i + 1]) for i in range(len(curve))]


def draw(path, curves):
    """Both curves in one SVG; curves: (name, colour, values)."""
    width, height, left, top = 860, 420, 60, 20
    longest, high, low = max(len(c[2]) for c in curves), max(max(c[2]) for c in curves), min(min(c[2]) for c in curves)
    span = high - low or 1
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2 * left}" height="{height + 3 * top}" font-family="sans-serif" font-size="12">'
             '<rect width="100%" height="100%" fill="white"/>']
    for i in range(6):
        y = top + height * i / 5
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#ddd"/><text x="8" y="{y + 4}">{high - span * i / 5:.3f}</text>'
                     f'<text x="{left + width * i / 5}" y="{top + height + 20}">{round((longest - 1) * i / 5) + 1}</text>')
    for i, (name, colour, values) in enumerate(curves):
        points = " ".join(f"{left + width * x / max(longest - 1, 1):.1f},{top + height * (high - y) / span:.1f}" for x, y in enumerate(values))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'
                     f'<text x="{left + width - 120}" y="{top + 20 + 18 * i}" fill="{colour}">{name}</text>')
    with open(path, "w") as file:
        file.write("\n".join(parts) + "</svg>\n")


def pretrain(options):
    import torch
    import transformers

    start = f"{options.pretrain}/start"
    os.makedirs(options.pretrain, exist_ok=True)
    torch.manual_seed(1)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this PyTorch sees no GPU")
    with open(options.vocab) as file:
        config = peer_config(SIZES[options.size], "sdpa", sum(1 for _ in file), options.dropout)
    transformers.BertForPreTraining(config).save_pretrained(start, safe_serialization=True)
    ours, our_rate = berth_curve(options, start)
    theirs, their_rate = peer_curve(options, start, len(ours))
    steps = min(len(ours), len(theirs))
    a, b = smooth(ours[:steps]), smooth(theirs[:steps])
    with open(f"{options.pretrain}/curves.tsv", "w") as file:
        file.writelines(f"{step + 1}\t{ours[step]}\t{theirs[step]}\n" for step in range(steps))
    draw(f"{options.pretrain}/curves.svg", [("berth", "#d98324", a), ("PyTorch", "#3b6ea8", b)])
    for step in sorted({1, *(round(steps * i / 20) for i in range(1, 21))} - {0}):
        print(f"at {step} {a[step - 1]:.4f} {b[step - 1]:.4f}")
    print(f"pretrain {steps} {max(abs(x - y) / y for x, y in zip(a, b)):.3g} {our_rate:.2f} {their_rate:.2f} torch-{torch.__version__}-sdpa")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="BERTH CASE")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--pretrain", metavar="FOLDER")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"), help="of --rates and --pretrain")
    pretraining = parser.add_argument_group("--pretrain")
    pretraining.add_argument("--shards")
    pretraining.add_argument("--vocab")
    pretraining.add_argument("--size", default="base", choices=SIZES)
    pretraining.add_argument("--precision", default="bf16", choices=("fp32", "bf16"))
    pretraining.add_argument("--dropout", type=float, default=0.1)
    pretraining.add_argument("--batch", type=int, default=256)
    pretraining.add_argument("--steps", type=int, default=5000)
    pretraining.add_argument("--minutes", type=float, default=3.5, help="of each side, at most")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        peer_main(*json.loads(options.peer))
    elif options.rates:
        rates(options)
    elif not options.words:
        parser.error("expected the path of berth")
    elif options.pretrain:
        options.berth = options.words[0]
        pretrain(options)
    else:
        options.berth = options.words[0]
        with tempfile.TemporaryDirectory() as folder:
            for name in options.words[1:] or ["mini-128-fp32", "mini-128-bf16", "base-128-fp32", "base-128-bf16", "base-512-fp32", "base-512-bf16", "base-512r-bf16"]:
                compare(name, options, folder)


main()
