#!/usr/bin/env python3
"""Makes the reference files beside this script with PyTorch and transformers; test_reference.c holds berth against them.

Usage: make_reference.py [folder]. For each case: a tiny BERT with random weights, dropout 0, and five sequences of different
length; loss, logits and the gradient of every parameter in float64; for case gelu also the weights after ten steps of AdamW
(torch.optim) and of LAMB (below, in float64, from its published formulas). NAME.safetensors holds tensors, NAME.json inputs,
scalars, and the errors that PyTorch's own float32 and bfloat16 show against float64, from which the tolerances come."""
import json
import math
import os
import sys

import numpy
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

STEPS, RATE, EPSILON, DECAY, CLIP, BETA1, BETA2 = 10, 1e-3, 1e-6, 0.01, 1.0, 0.9, 0.999
CASES = {"gelu": ("gelu", True), "gelu_new": ("gelu_new", True), "relu_mlm": ("relu", False)}


def make_model(act, nsp):
    config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                        hidden_act=act, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=40,
                        initializer_range=0.02, layer_norm_eps=1e-12, attn_implementation="eager")
    model = (BertForPreTraining if nsp else BertForMaskedLM)(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # biases and LayerNorm must matter, attention must not be flat
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("LayerNorm.weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(0.15 * noise)
        model.bert.embeddings.word_embeddings.weight[0] = 0.15 * torch.randn(32, generator=generator)
    for module in model.modules():
        if type(module) is torch.nn.LayerNorm:
            module.__class__ = MixedLayerNorm
    return model.train()


def make_batch():
    generator = numpy.random.default_rng(2)
    lengths = [17, 3, 40, 1, 26]
    batch = {"ids": [], "types": [], "starts": [0], "masked_rows": [], "masked_labels": [], "nsp_labels": [1, 0, 0, 1, 1]}
    for length in lengths:
        first = batch["starts"][-1]
        batch["ids"] += generator.integers(1, 99, length).tolist()
        batch["types"] += [int(i > length // 2) for i in range(length)]
        if length > 2:
            rows = sorted(generator.choice(numpy.arange(1, length), max(1, length // 6), replace=False).tolist())
            batch["masked_rows"] += [first + row for row in rows]
            batch["masked_labels"] += generator.integers(1, 99, len(rows)).tolist()
        batch["starts"].append(first + length)
    return batch


def padded(batch):
    starts = batch["starts"]
    count, longest = len(starts) - 1, max(b - a for a, b in zip(starts, starts[1:]))
    ids, types, mask = (torch.zeros(count, longest, dtype=torch.long) for _ in range(3))
    for s in range(count):
        length = starts[s + 1] - starts[s]
        ids[s, :length] = torch.tensor(batch["ids"][starts[s]:starts[s + 1]])
        types[s, :length] = torch.tensor(batch["types"][starts[s]:starts[s + 1]])
        mask[s, :length] = 1
    sequence = [max(s for s in range(count) if starts[s] <= row) for row in batch["masked_rows"]]
    position = [row - starts[s] for row, s in zip(batch["masked_rows"], sequence)]
    return ids, types, mask, sequence, position


class MixedLayerNorm(torch.nn.LayerNorm):
    """Statistics in float32 and the result in the input's type, as autocast does it on other devices."""

    def forward(self, x):
        return super().forward(x.float()).to(x.dtype) if x.dtype == torch.bfloat16 else super().forward(x)


def losses(model, batch, nsp):
    ids, types, mask, sequence, position = padded(batch)
    output = model(input_ids=ids, token_type_ids=types, attention_mask=mask)
    logits = (output.prediction_logits if nsp else output.logits)[sequence, position]
    loss = torch.nn.functional.cross_entropy(logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32),
                                             torch.tensor(batch["masked_labels"]))
    result = {"mlm_loss": loss, "mlm_logits": logits}
    if nsp:
        answer = output.seq_relationship_logits
        result["nsp_loss"] = torch.nn.functional.cross_entropy(
            answer.to(torch.float64 if answer.dtype == torch.float64 else torch.float32), torch.tensor(batch["nsp_labels"]))
        result["nsp_logits"] = answer
        loss = loss + result["nsp_loss"]
    result["loss"] = loss
    return result


def gradients(model, batch, nsp, autocast=False):
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        result = losses(model, batch, nsp)
    result["loss"].backward()
    return result, {name: p.grad.detach().double().clone() for name, p in model.named_parameters()}


def error(found, exact):
    """The norm of docs/architecture.md, largest over the tensors but key biases: their gradient is zero but for rounding."""
    everything = math.sqrt(sum(float((g ** 2).sum()) for g in exact.values()))
    floor = 1e-3 * everything / math.sqrt(len(exact))
    return max(float((found[n] - exact[n]).norm()) / max(float(exact[n].norm()), floor)
               for n in exact if "self.key.bias" not in n)


def decays(name):
    return not (name.endswith("bias") or "LayerNorm" in name)


def train_adamw(model, batch, nsp):
    groups = [{"params": [p for n, p in model.named_parameters() if decays(n) == decay], "weight_decay": DECAY if decay else 0.0}
              for decay in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON)
    trace = []
    for _ in range(STEPS):
        result, _ = gradients(model, batch, nsp)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        trace.append(float(result["loss"]))
    return {n: p.detach().clone() for n, p in model.named_parameters()}, trace


def train_lamb(model, batch, nsp):
    """LAMB in the NVLAMB form, in NumPy float64."""
    moments = {n: (numpy.zeros(p.shape), numpy.zeros(p.shape)) for n, p in model.named_parameters()}
    trace = []
    for t in range(1, STEPS + 1):
        result, grads = gradients(model, batch, nsp)
        trace.append(float(result["loss"]))
        norm = math.sqrt(sum(float((g ** 2).sum()) for g in grads.values()))
        for name, parameter in model.named_parameters():
            g = grads[name].numpy() / max(1.0, norm / CLIP)
            m, v = moments[name]
            m[...] = BETA1 * m + (1 - BETA1) * g
            v[...] = BETA2 * v + (1 - BETA2) * g * g
            p = parameter.detach().numpy()
            decay = DECAY if decays(name) else 0.0
            u = (m / (1 - BETA1 ** t)) / (numpy.sqrt(v / (1 - BETA2 ** t)) + EPSILON) + decay * p
            p_norm, u_norm = numpy.linalg.norm(p), numpy.linalg.norm(u)
            ratio = p_norm / u_norm if decay and p_norm > 0 and u_norm > 0 else 1.0
            with torch.no_grad():
                parameter -= torch.from_numpy(RATE * ratio * u)
    return {n: p.detach().clone() for n, p in model.named_parameters()}, trace


def make_case(folder, name, act, nsp):
    batch, model = make_batch(), make_model(act, nsp)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    _, single = gradients(model, batch, nsp)
    _, half = gradients(model, batch, nsp, autocast=True)
    model.double()
    result, exact = gradients(model, batch, nsp)
    tensors = {n: t.float() for n, t in start.items()}
    tensors.update({"grad." + n: g.float() for n, g in exact.items()})
    tensors["mlm_logits"] = result["mlm_logits"].detach().float().contiguous()
    scalars = {key: float(result[key]) for key in ("loss", "mlm_loss", "nsp_loss") if key in result}
    if nsp:
        tensors["nsp_logits"] = result["nsp_logits"].detach().float().contiguous()
    if name == "gelu":
        for optimizer, train in (("adamw", train_adamw), ("lamb", train_lamb)):
            fresh = make_model(act, nsp).double()
            weights, trace = train(fresh, batch, nsp)
            tensors.update({f"{optimizer}.{n}": w.float() for n, w in weights.items()})
            scalars[optimizer + "_losses"] = trace
    save_file(tensors, f"{folder}/{name}.safetensors", {"format": "pt"})
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump({"hidden_act": act, "nsp": nsp, "batch": batch, **scalars, "f32_error": error(single, exact),
                   "bf16_error": error(half, exact)}, file, indent=1)
    print(f"{name}: loss {scalars['loss']:.6f}, gradient error of PyTorch: f32 {error(single, exact):.2e}, "
          f"bf16 {error(half, exact):.2e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    for case, (act, nsp) in CASES.items():
        make_case(target, case, act, nsp)
