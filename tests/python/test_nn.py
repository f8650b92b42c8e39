"""Layers of linattn.nn against a composition of plain torch, and against themselves."""

import itertools

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from linattn.nn import (  # noqa: E402
    DecodeCache,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    LightningAttention,
)

HIDDEN = 48
LAYERS = {
    "kda": lambda: KimiDeltaAttention(HIDDEN, 1, 16, 2, layer_idx=0),
    "kda_groups": lambda: KimiDeltaAttention(
        HIDDEN, 2, 8, 2, 4, allow_neg_eigval=True, conv_bias=True, layer_idx=0
    ),
    "kda_bounded": lambda: KimiDeltaAttention(
        HIDDEN, 1, 16, 2, safe_gate=True, lower_bound=-5, use_short_conv=False, layer_idx=0
    ),
    "gdn": lambda: GatedDeltaNet(HIDDEN, 2, 16, 2, layer_idx=0),
    "gdn_groups": lambda: GatedDeltaNet(HIDDEN, 1, 16, 1, 3, use_gate=False, layer_idx=0),
    "gla": lambda: GatedLinearAttention(hidden_size=HIDDEN, num_heads=2, layer_idx=0),
    "gla_groups": lambda: GatedLinearAttention(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        expand_k=1,
        feature_map="relu",
        use_short_conv=True,
        gate_fn="sigmoid",
        clamp_min=-0.05,
        layer_idx=0,
    ),
    "lightning": lambda: LightningAttention(
        HIDDEN, layer_idx=1, num_layers=4, head_dim=16, num_heads=3
    ),
    "lightning_groups": lambda: LightningAttention(
        HIDDEN,
        layer_idx=1,
        num_layers=4,
        head_dim=16,
        num_heads=2,
        num_v_heads=4,
        expand_v=0.5,
        use_short_conv=True,
    ),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]()


def recurrence(q, k, v, log_decay, beta):
    """The token loop; ``log_decay [B, T, HV, K or 1]``, ``beta [B, T, HV]`` or None."""
    group = v.shape[2] // q.shape[2]
    q, k = q.repeat_interleave(group, 2), k.repeat_interleave(group, 2)
    state = q.new_zeros(*v.shape[:1], v.shape[2], q.shape[3], v.shape[3])
    outputs = []
    for t in range(q.shape[1]):
        state = log_decay[:, t].exp().unsqueeze(-1) * state
        update = v[:, t]
        if beta is not None:
            old = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            update = beta[:, t].unsqueeze(-1) * (update - old)
        state = state + k[:, t].unsqueeze(-1) * update.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[3] ** -0.5)
    return torch.stack(outputs, 1)


def heads(x, dim):
    return x.unflatten(-1, (-1, dim))


def project(layer, name, x, silu):
    y = getattr(layer, f"{name}_proj")(x)
    if layer.use_short_conv:
        weight, bias = (getattr(getattr(layer, f"{name}_conv1d"), a) for a in ("weight", "bias"))
        width = weight.shape[2]
        padded = F.pad(y.transpose(1, 2), (width - 1, 0))
        y = F.conv1d(padded, weight, bias, groups=y.shape[2]).transpose(1, 2)
        silu = True
    return F.silu(y) if silu else y


def normalised(o, norm):
    return o / torch.sqrt(o.square().mean(-1, keepdim=True) + norm.eps) * norm.weight


def unit(x):
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def compose(layer, x):
    """What the layer's docstring says, in plain torch."""
    gla = isinstance(layer, GatedLinearAttention)
    q, k, v = (
        heads(project(layer, name, x, not gla), dim)
        for name, dim in (("q", layer.head_k_dim), ("k", layer.head_k_dim), ("v", layer.head_v_dim))
    )
    beta = None
    if isinstance(layer, (KimiDeltaAttention, GatedDeltaNet)):
        q, k = unit(q), unit(k)
        beta = layer.b_proj(x).sigmoid() * (2 if layer.allow_neg_eigval else 1)
    if isinstance(layer, KimiDeltaAttention):
        raw = heads(layer.f_proj(x) + layer.dt_bias, layer.head_k_dim)
        rate = layer.A_log.exp().unsqueeze(-1)
        if layer.lower_bound is None:
            g = -rate * F.softplus(raw)
        else:
            g = layer.lower_bound * (rate * raw).sigmoid()
        gate = heads(layer.g_proj(x), layer.head_v_dim).sigmoid()
        o = normalised(recurrence(q, k, v, g, beta), layer.o_norm) * gate
    elif isinstance(layer, GatedDeltaNet):
        g = -layer.A_log.exp() * F.softplus(layer.a_proj(x) + layer.dt_bias)
        o = normalised(recurrence(q, k, v, g.unsqueeze(-1), beta), layer.o_norm)
        if layer.use_gate:
            o = o * F.silu(heads(layer.g_proj(x), layer.head_v_dim))
    elif gla:
        g = heads(F.logsigmoid(layer.gk_proj(x)) / 16, layer.head_k_dim)
        g = g if layer.clamp_min is None else g.clamp_min(layer.clamp_min)
        group = layer.num_kv_groups
        k, v, g = (t.repeat_interleave(group, 2) for t in (k, v, g))
        if layer.feature_map == "relu":
            q, k = q.relu(), k.relu()
        norm = layer.g_norm if layer.gate_fn == "sigmoid" else layer.g_norm_swish_gate
        gate = heads(layer.g_proj(x), layer.head_v_dim)
        gate = gate.sigmoid() if layer.gate_fn == "sigmoid" else F.silu(gate)
        o = normalised(recurrence(q, k, v, g, None), norm) * gate
    else:
        count = v.shape[2]
        decay = -8 / count * (1 - layer.layer_idx / layer.num_layers) * torch.arange(count)
        g = decay.expand(*x.shape[:2], count).unsqueeze(-1)
        gate = heads(layer.g_proj(x), layer.head_v_dim).sigmoid()
        o = normalised(recurrence(q, k, v, g, None), layer.o_norm) * gate
    return layer.o_proj(o.flatten(2))


def error(got, want):
    return ((got - want).norm() / want.norm()).item()


@pytest.mark.parametrize("num_tokens", [2, 5, 80])
def test_equals_plain_composition_with_gradients(layer, num_tokens):
    x = torch.randn(2, num_tokens, HIDDEN, requires_grad=True)
    y, reference = layer(x), compose(layer, x)
    assert y.shape == (2, num_tokens, HIDDEN)
    assert error(y, reference) < 2e-5
    dy = torch.randn_like(y)
    inputs = [x, *layer.parameters()]
    got = torch.autograd.grad(y, inputs, dy)
    want = torch.autograd.grad(reference, inputs, dy)
    for name, one, other in zip(["x", *dict(layer.named_parameters())], got, want, strict=True):
        if other.norm() > 1e-6:
            assert error(one, other) < 1e-4, name


def run_pieces(layer, x, pieces):
    cache, outputs, begin = DecodeCache(), [], 0
    for size in pieces:
        outputs.append(layer(x[:, begin : begin + size], cache))
        begin += size
    return torch.cat(outputs, 1), cache


@torch.no_grad()
def test_decode_equals_prefill(layer):
    x = torch.randn(2, 90, HIDDEN)
    whole, cache = run_pieces(layer, x, [90])
    decoded, stepped = run_pieces(layer, x, [70] + [1] * 20)
    assert error(decoded, whole) < 1e-5
    assert error(run_pieces(layer, x, [1] * 90)[0], whole) < 1e-5
    assert error(layer(x), whole) < 1e-6
    last, other = cache.get(layer.layer_idx), stepped.get(layer.layer_idx)
    assert error(other.recurrent, last.recurrent) < 1e-5
    assert last.recurrent.dtype == torch.float32
    assert other.tokens.tolist() == last.tokens.tolist() == [90, 90]
    for one, two in zip(other.conv, last.conv, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("pieces", [[1, 79], [2, 1, 77], [3, 64, 13], [17, 16, 47], [0, 79, 0, 1]])
def test_split_anywhere_equals_whole_with_gradients(layer, pieces):
    x = torch.randn(2, 80, HIDDEN, requires_grad=True)
    split, _ = run_pieces(layer, x, pieces)
    whole = layer(x)
    assert error(split, whole) < 1e-5
    dy = torch.randn_like(whole)
    inputs = [x, *layer.parameters()]
    got = torch.autograd.grad(split, inputs, dy)
    want = torch.autograd.grad(whole, inputs, dy)
    for name, one, other in zip(["x", *dict(layer.named_parameters())], got, want, strict=True):
        assert error(one, other) < 1e-4, name


@pytest.mark.parametrize("lengths", [[5, 0, 1, 30, 70], [1, 1, 1], [0, 4]])
def test_packed_equals_separate(layer, lengths):
    total, tail = sum(lengths), 2
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(1, total + tail, HIDDEN)
    x[:, total:] = float("nan")
    bounds = list(itertools.pairwise(offsets.tolist()))
    more = torch.randn(len(lengths), 1, HIDDEN)

    cache = DecodeCache()
    packed = layer(x, cache, offsets)
    assert torch.equal(packed[:, total:], torch.zeros(1, tail, HIDDEN))
    packed[:, :total].square().sum().backward()
    got = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    separate = torch.cat([layer(x[:, b:e]) for b, e in bounds], 1)
    assert error(packed[:, :total], separate) < 1e-5
    separate.square().sum().backward()
    for (name, p), one in zip(layer.named_parameters(), got, strict=True):
        assert one.isfinite().all(), name
        assert error(one, p.grad) < 1e-4 or p.grad.norm() < 1e-6, name

    # The documents go on as a batch, and as a pack of one token each.
    with torch.no_grad():
        assert cache.tokens.tolist() == lengths
        again = cache.select(torch.arange(len(lengths)))
        step = layer(more, cache)
        ones = torch.arange(len(lengths) + 1, dtype=torch.int32)
        assert error(layer(more.transpose(0, 1), again, ones), step.transpose(0, 1)) < 1e-5
        for n, (b, e) in enumerate(bounds):
            whole = layer(torch.cat([x[:, b:e], more[n : n + 1]], 1))
            assert error(step[n : n + 1], whole[:, -1:]) < 1e-5


@torch.no_grad()
def test_cache_holds_values_not_views(layer):
    x = torch.randn(3, 9, HIDDEN)
    _, cache = run_pieces(layer, x, [8])
    kept = cache.get(layer.layer_idx)
    before = kept.map(torch.clone)
    fork = cache.select(torch.tensor([2, 0, 2]))
    first = layer(x[:, 8:], cache)
    assert torch.equal(kept.recurrent, before.recurrent)
    assert all(map(torch.equal, kept.conv, before.conv))
    assert error(layer(x[[2, 0, 2], 8:], fork), first[[2, 0, 2]]) < 1e-6
    assert cache.nbytes == sum(t.nbytes for t in (kept.recurrent, kept.tokens, *kept.conv))
    cache.reset()
    assert len(cache) == 0 and cache.tokens is None
    with pytest.raises(ValueError, match=r"cache holds 3 sequences: must be 2"):
        layer(x[:2], fork)


@torch.no_grad()
def test_bf16_module_keeps_fp32_state(layer):
    x = torch.randn(2, 40, HIDDEN).to(torch.bfloat16)
    want = layer(x.float())
    layer = layer.to(torch.bfloat16)
    got, cache = run_pieces(layer, x, [30] + [1] * 10)
    assert got.dtype == torch.bfloat16
    assert cache.get(layer.layer_idx).recurrent.dtype == torch.float32
    # Weights, projections and outputs are rounded to 8 bits: a few times 2^-9 in all.
    assert error(got.float(), want) < 2.5e-2


def test_autocast_with_gradients(layer):
    x = torch.randn(2, 40, HIDDEN, requires_grad=True)
    want = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(x)
        got.float().square().sum().backward()
    assert got.dtype == torch.bfloat16
    assert error(got.float(), want) < 2.5e-2
    (dx,) = torch.autograd.grad(want.square().sum(), x)
    # Direction alone: the norm amplifies the rounding of a token whose output is small.
    assert F.cosine_similarity(x.grad.flatten(), dx.flatten(), dim=0) > 0.99
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", ["kda", "gdn_groups", "gla_groups", "lightning"])
def test_traces_without_graph_breaks(name):
    layer = LAYERS[name]()
    torch._dynamo.reset()  # forward() is one code object for all layers, and its cache is bounded
    x = torch.randn(2, 20, HIDDEN, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    want = layer(x)
    got = compiled(x)
    torch.testing.assert_close(got, want)
    (dx,) = torch.autograd.grad(want.square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(got.square().sum(), x)[0], dx)


def test_modes_agree_with_gradients(layer):
    x = torch.randn(2, 20, HIDDEN, requires_grad=True)
    inputs = [x, *layer.parameters()]
    chunked = layer(x)
    layer.mode = "fused_recurrent"
    stepped = layer(x)
    assert error(stepped, chunked) < 1e-5
    dy = torch.randn_like(x)
    want = torch.autograd.grad(chunked, inputs, dy)
    for one, other in zip(torch.autograd.grad(stepped, inputs, dy), want, strict=True):
        assert error(one, other) < 1e-4
