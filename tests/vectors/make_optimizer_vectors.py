#!/usr/bin/env python3
"""Make tests/vectors/optimizers.json: recorded reference runs of embedding optimizers.

What it is
    Each case starts from a small table, pushes gradients step by step, and records
    the final table and optimizer state. Where PyTorch has the optimizer, PyTorch
    itself (CPU, float32) made the result ("source": "torch.optim...."). Where it has
    not, a NumPy float64 reference in this file made it, rounded to float32 only at
    the end ("source": "numpy").

How to rerun
    python3.11 -m venv .tools/torch
    .tools/torch/bin/pip install --no-cache-dir torch numpy
    .tools/torch/bin/python tests/vectors/make_optimizer_vectors.py

    It writes optimizers.json beside itself and prints, per case, how far the recorded
    float32 result is from a float64 re-computation. Inputs depend only on the case
    name (seeded); torch's last bits may differ between torch versions and CPUs. The
    torch and numpy versions are in each case's "generated_with".

Case format (the file is a JSON list of these)
    name, source, generated_with, optimizer, dim, rows, learning_rate, weight_decay,
    clip_norm (null: none), eps / beta1 / beta2 (null: unused), initial [rows*dim],
    steps [{keys, gradients [len(keys)*dim], learning_rate (null: the case's; a number
    holds for that step only)}], final [rows*dim], state (null, or a list of flat
    tensors: adagrad [sum: rows*dim]; rowwise_adagrad [accumulator: rows];
    adam and adamw [exp_avg, exp_avg_sq: rows*dim each]).
    Every array element is the shortest decimal that gives the float32 back when it is
    parsed as f64 and cast to f32 (checked here). Hyperparameters are written out in
    full (0.9990000128746033), being exact float32 values that torch was also given,
    so that 1 - beta2 agrees whether the reader holds beta2 in f32 or f64.

Rules of the formulas (see reference() below)
    A key occurring more than once in a step: its gradients are summed first, and the
    row is updated once. Rows not in a step's keys are not touched, and neither is
    their state. Adam's step number t counts pushes (1, 2, 3, ...) of the whole table,
    not of the row, as in torch.optim.SparseAdam. Weight decay is L2 (added to the
    summed gradient) except in adamw, where it is decoupled. Clipping is per row, on
    the summed gradient; no case has both clipping and weight decay.
"""

import json
import math
import os
import sys
import zlib

import numpy as np
import torch

ROWS = 12
HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)
torch.sparse.check_sparse_tensor_invariants.enable()
VERSIONS = f"torch {torch.__version__}, numpy {np.__version__}"


def f32(x):
    """The float32 nearest x, as a Python float."""
    return float(np.float32(x))


# ---------------------------------------------------------------- reference


def sum_duplicates(keys, grads, dtype):
    rows = {}
    for k, g in zip(keys, grads):
        g = g.astype(dtype)
        rows[k] = rows[k] + g if k in rows else g
    return rows


def reference(case, dtype=np.float64):
    """Run a case in NumPy. Returns (final, state list, {"clipped": n, "unclipped": n})."""
    opt, rows, dim = case["optimizer"], case["rows"], case["dim"]
    eps, b1, b2 = case["eps"], case["beta1"], case["beta2"]
    wd, clip = case["weight_decay"], case["clip_norm"]
    w = case["initial"].astype(dtype)
    state = {
        "sgd": [],
        "adagrad": [np.zeros((rows, dim), dtype)],
        "rowwise_adagrad": [np.zeros(rows, dtype)],
        "adam": [np.zeros((rows, dim), dtype), np.zeros((rows, dim), dtype)],
        "adamw": [np.zeros((rows, dim), dtype), np.zeros((rows, dim), dtype)],
    }[opt]
    counts = {"clipped": 0, "unclipped": 0}
    for t, step in enumerate(case["steps"], 1):
        lr = case["learning_rate"] if step["learning_rate"] is None else step["learning_rate"]
        for k, g in sum_duplicates(step["keys"], step["gradients"], dtype).items():
            if clip is not None:
                n = np.sqrt((g * g).sum())
                counts["clipped" if n > clip else "unclipped"] += 1
                if n > clip:
                    g = g * (dtype(clip) / n)
            if wd and opt != "adamw":
                g = g + wd * w[k]
            if opt == "sgd":
                w[k] -= lr * g
            elif opt == "adagrad":
                state[0][k] += g * g
                w[k] -= lr * (g / (np.sqrt(state[0][k]) + eps))
            elif opt == "rowwise_adagrad":  # fbgemm EXACT_ROWWISE_ADAGRAD
                state[0][k] += (g * g).mean()
                w[k] -= lr / (np.sqrt(state[0][k]) + eps) * g
            else:
                m, v = state
                if opt == "adamw":
                    w[k] *= 1.0 - lr * wd
                m[k] += (1.0 - b1) * (g - m[k])
                v[k] += (1.0 - b2) * (g * g - v[k])
                c1, c2 = 1.0 - b1**t, 1.0 - b2**t
                if opt == "adam":  # torch.optim.SparseAdam: eps beside sqrt(v)
                    w[k] -= lr * math.sqrt(c2) / c1 * (m[k] / (np.sqrt(v[k]) + eps))
                else:  # torch.optim.AdamW: eps beside sqrt(v / c2)
                    w[k] -= lr / c1 * (m[k] / (np.sqrt(v[k]) / math.sqrt(c2) + eps))
        assert w.dtype == dtype
    return w, state, counts


# ---------------------------------------------------------------- torch


def run_torch(case, dense):
    """Run a case with nn.Embedding and the torch optimizer. Returns (final, state list)."""
    opt, lr, wd = case["optimizer"], case["learning_rate"], case["weight_decay"]
    emb = torch.nn.Embedding(case["rows"], case["dim"], sparse=not dense)
    with torch.no_grad():
        emb.weight.copy_(torch.from_numpy(case["initial"]))
    p = list(emb.parameters())
    betas = (case["beta1"], case["beta2"])
    if opt == "sgd":
        o = torch.optim.SGD(p, lr=lr, weight_decay=wd, foreach=False)
    elif opt == "adagrad":
        o = torch.optim.Adagrad(p, lr=lr, weight_decay=wd, eps=case["eps"], foreach=False)
    elif opt == "adam":
        o = torch.optim.SparseAdam(p, lr=lr, betas=betas, eps=case["eps"])
    elif opt == "adamw":
        o = torch.optim.AdamW(p, lr=lr, betas=betas, eps=case["eps"], weight_decay=wd,
                              amsgrad=False, foreach=False)
    for step in case["steps"]:
        if dense:
            assert set(step["keys"]) == set(range(case["rows"]))
        o.param_groups[0]["lr"] = lr if step["learning_rate"] is None else step["learning_rate"]
        o.zero_grad()
        loss = (emb(torch.tensor(step["keys"])) * torch.from_numpy(step["gradients"])).sum()
        loss.backward()
        assert emb.weight.grad.is_sparse == (not dense)
        o.step()
    s = o.state[emb.weight]
    names = {"sgd": [], "adagrad": ["sum"]}.get(opt, ["exp_avg", "exp_avg_sq"])
    return emb.weight.detach().numpy().copy(), [s[n].numpy().copy() for n in names]


def cross_check_torch(case):
    """For NumPy cases that torch can run if handed a prepared sparse gradient: sgd with
    clipping, and adam with L2 weight decay. Returns the final table, or None."""
    if case["optimizer"] not in ("sgd", "adam"):
        return None
    p = torch.nn.Parameter(torch.from_numpy(case["initial"].copy()))
    if case["optimizer"] == "sgd":
        o = torch.optim.SGD([p], lr=0.0, foreach=False)
    else:
        o = torch.optim.SparseAdam([p], lr=1.0, betas=(case["beta1"], case["beta2"]), eps=case["eps"])
    for step in case["steps"]:
        o.param_groups[0]["lr"] = (
            case["learning_rate"] if step["learning_rate"] is None else step["learning_rate"])
        g = torch.sparse_coo_tensor(torch.tensor([step["keys"]]), torch.from_numpy(step["gradients"]),
                                    tuple(p.shape)).coalesce()
        idx, val = g.indices(), g.values().clone()
        if case["clip_norm"] is not None:
            val = torch.renorm(val, 2, 0, case["clip_norm"])
        val = val + case["weight_decay"] * p.detach()[idx[0]]
        p.grad = torch.sparse_coo_tensor(idx, val, tuple(p.shape)).coalesce()
        o.step()
    return p.detach().numpy()


# ---------------------------------------------------------------- inputs


def make_case(name, optimizer, dim, steps, *, source, lr, wd=0.0, clip=None, dense=False,
              wide=False, digits=2, max_keys=10):
    """digits: decimals of the ordinary gradients, which lie in (-10, 10)."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))

    def gradient(key):
        if wide:  # 1e-6 .. 1e2, three significant digits
            # Row 0 only gets tiny gradients, so that the place of eps shows in it.
            mag = 10.0 ** rng.uniform(-6, -5 if key == 0 else 2, dim)
            return np.array([float(f"{x:.2e}") for x in mag]) * rng.choice([-1, 1], dim)
        scale = 10**digits
        g = rng.integers(-10 * scale + 1, 10 * scale, dim)
        if clip is not None and rng.random() < 0.5:
            g = g // 10  # a small row, which will not be clipped
        return g / scale

    out = []
    for t in range(steps):
        if dense:
            # every row, and (small cases) one row twice
            keys = list(range(ROWS)) + ([int(rng.integers(ROWS))] if dim <= 5 else [])
        else:
            # The last row is never touched; the one before it only in the second half.
            top = ROWS - 2 if t < steps // 2 else ROWS - 1
            n = int(rng.integers(6, max_keys + 1))
            keys = [int(k) for k in rng.integers(0, top, n)]
            if t == steps // 2:
                keys[0] = ROWS - 2
            if t % 5 == 2:
                keys[1] = keys[3] = keys[5]  # at least three times
            elif t % 5 != 4:
                keys[2] = keys[4]  # at least twice
        rng.shuffle(keys)
        grads = np.stack([gradient(k) for k in keys])
        # A sum of duplicates that nearly cancels would be all rounding error, which
        # Adagrad and Adam then normalise to a full step: give such elements one sign.
        for k in set(keys):
            at = [i for i, x in enumerate(keys) if x == k]
            s, a = np.abs(grads[at].sum(0)), np.abs(grads[at]).sum(0)
            bad = s < 0.05 * a
            for i in at:
                grads[i, bad] = np.abs(grads[i, bad])
        override = {3: 0.5, 4: 0.25, 9: 3.0, 15: 0.1}.get(t)
        out.append({
            "keys": keys,
            "gradients": grads.astype(np.float32),
            "learning_rate": None if override is None else f32(lr * override),
        })
    adam = optimizer in ("adam", "adamw")
    eps = {"sgd": None, "adagrad": 1e-10}.get(optimizer, 1e-8)
    case = {
        "name": name, "source": source, "generated_with": VERSIONS, "optimizer": optimizer,
        "dim": dim, "rows": ROWS, "learning_rate": f32(lr), "weight_decay": f32(wd),
        "clip_norm": None if clip is None else f32(clip),
        "eps": None if eps is None else f32(eps),
        "beta1": f32(0.9) if adam else None, "beta2": f32(0.999) if adam else None,
        "initial": (rng.integers(-99, 100, (ROWS, dim)) / 100).astype(np.float32),
        "steps": out,
    }
    return case, dense


def all_cases():
    T = "torch.optim."
    # name, optimizer, source, keyword arguments, the large dims with their step counts
    kinds = [
        ("sgd", "sgd", T + "SGD", dict(lr=0.05), {33: 8}),
        ("adagrad", "adagrad", T + "Adagrad", dict(lr=0.1), {33: 8}),
        ("adam", "adam", T + "SparseAdam", dict(lr=0.01), {33: 8}),
        ("adamw_decay", "adamw", T + "AdamW", dict(lr=0.01, wd=0.01, dense=True), {16: 10}),
        ("adamw_no_decay", "adamw", T + "AdamW", dict(lr=0.01, dense=True), {}),
        ("sgd_decay", "sgd", T + "SGD", dict(lr=0.05, wd=0.02, dense=True), {16: 8}),
        ("adagrad_decay", "adagrad", T + "Adagrad", dict(lr=0.1, wd=0.02, dense=True), {16: 8}),
        ("adam_decay", "adam", "numpy", dict(lr=0.01, wd=0.1), {16: 8}),
        ("rowwise_adagrad", "rowwise_adagrad", "numpy", dict(lr=0.1), {33: 8}),
        ("rowwise_adagrad_decay", "rowwise_adagrad", "numpy", dict(lr=0.1, wd=0.1), {16: 10}),
        ("sgd_clip", "sgd", "numpy", dict(lr=0.05), {33: 8}),
        ("rowwise_adagrad_clip", "rowwise_adagrad", "numpy", dict(lr=0.1), {16: 10}),
    ]
    for name, opt, source, kw, large in kinds:
        clipping = name.endswith("_clip")
        for dim, steps in [(1, 20), *large.items()]:
            c = dict(clip=2.0 * dim**0.5) if clipping else {}
            # short numbers and fewer keys in large cases, for the size of the file
            small = {} if dim == 1 else dict(digits=1, max_keys=8)
            yield make_case(f"{name}_dim{dim}", opt, dim, steps, source=source, **kw, **c, **small)
        c = dict(clip=1.5) if clipping else {}
        wide_steps = 12 if kw.get("dense") else 20
        yield make_case(f"{name}_dim5_wide", opt, 5, wide_steps, source=source, wide=True,
                        max_keys=8, **kw, **c)


# ---------------------------------------------------------------- output


def numbers(a):
    """Shortest decimals that give the same float32 back by way of f64."""
    out = []
    for x in np.asarray(a, np.float32).ravel():
        assert np.isfinite(x)
        s = str(x)
        assert np.float32(float(s)).tobytes() == x.tobytes(), s
        json.loads(s)
        out.append(s)
    return "[" + ",".join(out) + "]"


def render(case):
    parts = []
    for key, value in case.items():
        if key == "steps":
            steps = ["{" + f'"keys":{json.dumps(s["keys"], separators=(",", ":"))},'
                     f'"gradients":{numbers(s["gradients"])},'
                     f'"learning_rate":{json.dumps(s["learning_rate"])}' + "}" for s in value]
            text = "[\n" + ",\n".join(steps) + "]"
        elif key == "state":
            text = "[" + ",\n".join(numbers(x) for x in value) + "]" if value else "null"
        elif isinstance(value, np.ndarray):
            text = numbers(value)
        else:
            text = json.dumps(value)
        parts.append(f'"{key}":{text}')
    return "{" + ",\n".join(parts) + "}"


def differences(got, want):
    """Largest |got-want|; largest |got-want|/|want|; the smallest r for which
    |got-want| <= r * max(1, |want|) everywhere."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    d = np.abs(got - want)
    if d.size == 0:
        return 0.0, 0.0, 0.0
    rel = np.divide(d, np.abs(want), out=np.where(d > 0, np.inf, 0.0), where=want != 0)
    return d.max(), rel.max(), (d / np.maximum(1.0, np.abs(want))).max()


def main():
    rendered, report = [], []
    for case, dense in all_cases():
        ref, ref_state, counts = reference(case)
        extra = ""
        if case["source"] == "numpy":
            # what is recorded is the float64 run; measure a float32 run against it
            measured, measured_state, _ = reference(case, np.float32)
            how = "numpy f32"
            final, state = ref.astype(np.float32), [s.astype(np.float32) for s in ref_state]
            other = cross_check_torch(case)
            if other is not None:
                extra += f" torch-by-hand rel {differences(other, ref)[1]:.1e}"
        else:
            final, state = run_torch(case, dense)
            measured, measured_state, how = final, state, "torch f32"
        if case["clip_norm"] is not None:
            assert counts["clipped"] and counts["unclipped"], case["name"]
            extra += f" clipped {counts['clipped']} of {sum(counts.values())} rows"
        touched = {k for s in case["steps"] for k in s["keys"]}
        for r in set(range(ROWS)) - touched:
            assert final[r].tobytes() == case["initial"][r].tobytes()
        case["final"], case["state"] = final, state
        rendered.append(render(case))
        a, r, m = differences(measured, ref)
        # state: worst error relative to the element, and to the tensor's largest element
        pairs = list(zip(measured_state, ref_state))
        sr = max([differences(x, y)[1] for x, y in pairs], default=0.0)
        ss = max([differences(x, y)[0] / np.abs(y).max() for x, y in pairs], default=0.0)
        report.append((case["name"], how, len(case["steps"]), a, r, m, sr, ss, extra))
    text = "[\n" + ",\n".join(rendered) + "\n]\n"
    parsed = json.loads(text)
    assert len({c["name"] for c in parsed}) == len(parsed)
    for c in parsed:
        assert len(c["initial"]) == len(c["final"]) == c["rows"] * c["dim"]
        assert all(len(s["gradients"]) == len(s["keys"]) * c["dim"] for s in c["steps"])
    with open(os.path.join(HERE, "optimizers.json"), "w") as f:
        f.write(text)
    print(VERSIONS, "cases:", len(parsed), "bytes:", len(text))
    print(f"{'case':32} {'float32 run':10} steps  w abs    w rel    w mixed  state rel  state/max")
    for name, how, n, a, r, m, sr, ss, extra in report:
        print(f"{name:32} {how:10} {n:5}  {a:.1e}  {r:.1e}  {m:.1e}  {sr:.1e}    {ss:.1e} {extra}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
