"""Writes vectors.json: what PyTorch computes for the objectives and the optimizers, for the tests of `update`.

Run in this folder with PyTorch at hand: python make_vectors.py
Objectives are computed in f64 by autograd, optimizers in f32 by torch.optim; Muon's iteration in f32 by the formula
of https://kellerjordan.github.io/posts/muon/ and compared here with torch.optim.Muon, which iterates in bf16.
"""

import json

import torch

torch.manual_seed(7)


def numbers(tensor):
    return [float(x) for x in tensor.detach().flatten()]


def objectives():
    """One optimizer batch of four samples: loss and derivative by every log-probability."""
    lengths = [1, 5, 3, 4]
    advantages = [1.25, -0.75, 0.0, -0.5]
    old = [(-3 * torch.rand(n) - 0.05).double() for n in lengths]
    new = [(o.float() + 0.5 * torch.randn(n)).clamp(max=-1e-3).double() for o, n in zip(old, lengths)]
    reference = [(o.float() + 0.2 * torch.randn(n)).double() for o, n in zip(old, lengths)]
    low, high, beta, max_tokens, cap = 0.2, 0.28, 0.05, 16, 1.1
    # Log-probabilities of the trainer's forward pass before its first step, if several steps are taken on the
    # samples. Drawn separately, so that the other cases keep their numbers.
    generator = torch.Generator().manual_seed(8)
    start = [(o.float() + 0.3 * torch.randn(n, generator=generator)).double() for o, n in zip(old, lengths)]

    def aggregate(terms, how):
        if how == "token":
            return sum(t.sum() for t in terms) / sum(lengths)
        if how == "sequence":
            return sum(t.mean() for t in terms) / len(lengths)
        return sum(t.sum() for t in terms) / (len(lengths) * max_tokens)

    cases = []
    for objective in ["clip", "clip+kl", "nll", "cap", "cap+start"]:
        for how in ["token", "sequence", "constant"]:
            leaves = [n.clone().requires_grad_() for n in new]
            terms = []
            for leaf, o, r, a, b in zip(leaves, old, reference, advantages, start):
                if objective == "nll":
                    terms.append(-a * leaf)
                    continue
                if objective.startswith("cap"):
                    # Truncated importance sampling: constant weights between the sampler and the trainer, and ratios
                    # within the trainer.
                    before = b if objective == "cap+start" else leaf.detach()
                    weight = (before - o).exp().clamp(max=cap)
                    ratio = (leaf - before).exp()
                    terms.append(-weight * torch.min(ratio * a, ratio.clamp(1 - low, 1 + high) * a))
                    continue
                ratio = (leaf - o).exp()
                term = -torch.min(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
                if objective == "clip+kl":
                    term = term + beta * ((r - leaf).exp() - (r - leaf) - 1)
                terms.append(term)
            loss = aggregate(terms, how)
            loss.backward()
            slopes = [numbers(leaf.grad) for leaf in leaves]
            cases.append({"objective": objective, "aggregate": how, "loss": loss.item(), "slopes": slopes})
    return {
        "advantages": advantages, "low": low, "high": high, "kl": beta, "max_tokens": max_tokens, "cap": cap,
        "old": [numbers(x) for x in old], "new": [numbers(x) for x in new],
        "reference": [numbers(x) for x in reference], "start": [numbers(x) for x in start], "cases": cases,
    }


def orthogonalized(matrix, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (matrix.norm() + 1e-7)
    if matrix.shape[0] > matrix.shape[1]:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def muon(start, gradients, lr, decay):
    param, buffer = start.clone(), torch.zeros_like(start)
    for gradient in gradients:
        buffer.mul_(0.95).add_(gradient)
        update = orthogonalized(gradient + 0.95 * buffer)
        param.mul_(1 - lr * decay)
        param.add_(update, alpha=-lr * max(1, param.shape[0] / param.shape[1]) ** 0.5)
    theirs = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Muon([theirs], lr=lr, weight_decay=decay)
    for gradient in gradients:
        theirs.grad = gradient.clone()
        optimizer.step()
    moved, difference = (param - start).norm(), (theirs.detach() - param).norm()
    assert difference < 0.05 * moved, (difference, moved)
    return param, buffer


def optimizers():
    cases = []
    steps, lr, decay = 4, 3e-3, 0.1
    for rows, columns in [(4, 6), (7, 3)]:
        start = torch.randn(rows, columns)
        gradients = [torch.randn(rows, columns) * 0.3 for _ in range(steps)]
        for name in ["adamw", "sgd", "muon"]:
            if name == "muon":
                end, _ = muon(start, gradients, lr, decay)
            else:
                param = torch.nn.Parameter(start.clone())
                if name == "adamw":
                    optimizer = torch.optim.AdamW([param], lr=lr, betas=(0.9, 0.98), weight_decay=decay)
                else:
                    # SGD's weight_decay is coupled; the decoupled form is applied by hand.
                    optimizer = torch.optim.SGD([param], lr=lr)
                for gradient in gradients:
                    if name == "sgd":
                        with torch.no_grad():
                            param.mul_(1 - lr * decay)
                    param.grad = gradient.clone()
                    optimizer.step()
                end = param.detach()
            cases.append({
                "optimizer": name, "rows": rows, "columns": columns, "lr": lr, "weight_decay": decay,
                "betas": [0.9, 0.98], "start": numbers(start), "gradients": [numbers(g) for g in gradients],
                "end": numbers(end),
            })
    return cases


def clipping():
    param = torch.nn.Parameter(torch.zeros(5))
    gradient = torch.randn(5)
    cases = []
    for limit in [1.0, 100.0]:
        param.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_([param], limit)
        cases.append({"limit": limit, "gradient": numbers(gradient), "norm": float(norm), "clipped": numbers(param.grad)})
    return cases


vectors = {"made_with": {"torch": torch.__version__}, "objectives": objectives(), "optimizers": optimizers(), "clipping": clipping()}
with open("vectors.json", "w") as file:
    json.dump(vectors, file, indent=1)
    file.write("\n")
