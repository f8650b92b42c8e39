"""Plain torch versions of every family: what one would write without this library.

Chunks of 64 tokens, fp32, vectorised over batch, heads and chunks; a Python loop carries the state
from chunk to chunk. Matrix products and one batched triangular solve do the work, so this is a
fair version and no straw man; autograd gives the backward pass.

Within a chunk G_i is the running sum of the log decays, A_ij = beta_i <k_i, k_j e^(G_i - G_j)>
below the diagonal, P_ij = scale <q_i, k_j e^(G_i - G_j)> on and below it:

    W, U = (I + A)^-1 [beta k e^G, beta v]      R = U - W S   (additive families: R = v)
    O = scale q e^G S + P R                     S <- e^(G_C) S + (k e^(G_C - G))^T R
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64
# Channel gates are split as e^(G_i - a) e^(a - G_j) with an anchor for so many rows: fp32 holds
# the second factor for log decays down to -5.
ANCHORED_ROWS = 16


def _to_chunks(x: Tensor, heads: int) -> Tensor:
    """[B,T,h,D] -> fp32 [B,heads,T/C,C,D], zeros past the end, q/k heads repeated for a group."""
    batch, tokens, own, dim = x.shape
    x = torch.nn.functional.pad(x.float(), (0, 0, 0, 0, 0, -tokens % CHUNK))
    if own != heads:
        x = x.repeat_interleave(heads // own, dim=2)
    return x.transpose(1, 2).reshape(batch, heads, -1, CHUNK, dim)


def _scores(x: Tensor, k: Tensor, G: Tensor | None) -> Tensor:
    """<x_i, k_j e^(G_i - G_j)> for j <= i; the rest is anything finite."""
    if G is None:
        return x @ k.transpose(-1, -2)
    if G.shape[-1] == 1:  # a head gate: the decay comes out of the product
        below = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril()
        decay = (G - G.transpose(-1, -2)).masked_fill(~below, 0.0).exp()
        return (x @ k.transpose(-1, -2)) * decay
    rows = []
    for first in range(0, CHUNK, ANCHORED_ROWS):
        block = slice(first, first + ANCHORED_ROWS)
        anchor = G[..., first : first + 1, :]
        columns = k[..., : block.stop, :] * (anchor - G[..., : block.stop, :]).exp()
        product = (x[..., block, :] * (G[..., block, :] - anchor).exp()) @ columns.transpose(-1, -2)
        rows.append(torch.nn.functional.pad(product, (0, CHUNK - block.stop)))
    return torch.cat(rows, dim=-2)


def chunk_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    g_gamma: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Any family: o [B,T,HV,V] and the final state [B,HV,K,V].

    q, k [B,T,H,K]; v [B,T,HV,V]; log decay g [B,T,HV] or [B,T,HV,K], or g_gamma [HV], or none;
    beta [B,T,HV] selects the delta update.
    """
    batch, tokens, heads, dim_v = v.shape
    dim_k = q.shape[-1]
    q, k, v = _to_chunks(q, heads), _to_chunks(k, heads), _to_chunks(v, heads)
    q = q * (dim_k**-0.5 if scale is None else scale)
    if g_gamma is not None:
        g = g_gamma.float().expand(batch, tokens, heads)
    G = None
    if g is not None:
        G = _to_chunks(g if g.dim() == 4 else g[..., None], heads).cumsum(-2)
    P = _scores(q, k, G).tril()
    W = None
    if beta is not None:
        b = _to_chunks(beta[..., None], heads)
        A = (b * _scores(k, k, G)).tril(-1)
        right = torch.cat([b * (k if G is None else k * G.exp()), b * v], dim=-1)
        # unitriangular: the ones on the diagonal are taken for granted
        solved = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
        W, v = solved[..., :dim_k], solved[..., dim_k:]
    decay = None
    if G is not None:
        last = G[..., -1:, :]
        q, k, decay = q * G.exp(), k * (last - G).exp(), last.exp().transpose(-1, -2)
    state = torch.zeros(batch, heads, dim_k, dim_v, device=q.device)
    if initial_state is not None:
        state = initial_state.float()
    outputs = []
    for c in range(q.shape[2]):
        R = v[:, :, c] if W is None else v[:, :, c] - W[:, :, c] @ state
        outputs.append(q[:, :, c] @ state + P[:, :, c] @ R)
        update = k[:, :, c].transpose(-1, -2) @ R
        state = state + update if decay is None else decay[:, :, c] * state + update
    o = torch.stack(outputs, dim=2).reshape(batch, heads, -1, dim_v)
    return o[:, :, :tokens].transpose(1, 2), state


def decode_step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """One token for every sequence: `state` [N,HV,K,V] is updated in place, o [N,HV,V] returned.

    Multiply and sum, as model code without a kernel does it. q, k [N,H,K]; v [N,HV,V]; log decay
    g [N,HV] or [N,HV,K] or none; beta [N,HV] or none.
    """
    q, k, v, decay = _decode_inputs(state, q, k, v, g)
    if decay is not None:
        state *= decay
    if beta is not None:
        v = beta.float()[..., None] * (v - (state * k[..., None]).sum(-2))
    state += k[..., None] * v[..., None, :]
    return (state * q[..., None]).sum(-2) * (k.shape[-1] ** -0.5 if scale is None else scale)


def decode_step_inplace(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """`decode_step` tuned by hand: no temporary of the state's size.

    Six passes over the state where a kernel needs two, so no kernel is more than three times as
    fast once memory is the limit.
    """
    sequences, heads, dim_k, dim_v = state.shape
    q, k, v, decay = _decode_inputs(state, q, k, v, g)
    flat = state.view(sequences * heads, dim_k, dim_v)
    q, k, v = (x.reshape(sequences * heads, 1, -1) for x in (q, k, v))
    if decay is not None:
        state.mul_(decay)
    if beta is not None:
        v = beta.float().reshape(-1, 1, 1) * (v - torch.bmm(k, flat))
    torch.baddbmm(flat, k.transpose(1, 2), v, out=flat)
    o = torch.bmm(q, flat) * (dim_k**-0.5 if scale is None else scale)
    return o.view(sequences, heads, dim_v)


def _decode_inputs(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """fp32, a head for each value head, and the decay as a factor of the state."""
    heads = state.shape[1]
    if k.shape[1] != heads:
        q, k = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
    decay = None
    if g is not None:
        decay = g.float().exp().reshape(*state.shape[:2], -1, 1)
    return q.float(), k.float(), v.float(), decay
