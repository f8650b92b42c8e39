"""Layers of linattn.nn against a composition of plain torch, and against themselves."""

import math

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
    for name, one, other in zip(
        ["x", *dict(layer.named_parameters())], got, want, strict=True
    ):
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
    for name, one, other in zip(
        ["x", *dict(layer.named_parameters())], got, want, strict=True
    ):
        assert error(one, other) < 1e-4, name


@pytest.mark.parametrize("lengths", [[5, 0, 1, 30, 70], [1, 1, 1], [0, 4]])
def test_packed_equals_separate(layer, lengths):
    total, tail = sum(lengths), 2
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(1, total + tail, HIDDEN)
    x[:, total:] = float("nan")
    bounds = list(zip(offsets.tolist(), offsets.tolist()[1:], strict=False))
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
    assert cache.nbytes == sum(
        t.nbytes for t in (kept.recurrent, kept.tokens, *kept.conv)
    )
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


def test_traces_without_graph_breaks(layer):
    torch._dynamo.reset()  # forward() is one code object for all layers, and its cache is bounded
    x = torch.randn(2, 20, HIDDEN, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    want = layer(x)
    got = compiled(x)
    torch.testing.assert_close(got, want)
    (dx,) = torch.autograd.grad(want.square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(got.square().sum(), x)[0], dx)


def test_frozen_layer_decodes_with_the_recurrent_operator_in_grad_mode(layer):
    x = torch.randn(1, 4, HIDDEN)
    layer.requires_grad_(False)
    whole, _ = run_pieces(layer, x, [4])
    assert error(run_pieces(layer, x, [3, 1])[0], whole) < 1e-5


# Names and shapes of FLA 0.5.2's layers, default and small configurations.
def fla_parameters(name):
    h, key, value = 2048, 2048, 2048
    kda = {
        "A_log": (16,), "dt_bias": (2048,),
        "q_proj.weight": (key, h), "k_proj.weight": (key, h), "v_proj.weight": (value, h),
        "q_conv1d.weight": (key, 1, 4), "k_conv1d.weight": (key, 1, 4),
        "v_conv1d.weight": (value, 1, 4),
        "f_proj.0.weight": (128, h), "f_proj.1.weight": (2048, 128), "b_proj.weight": (16, h),
        "g_proj.0.weight": (128, h), "g_proj.1.weight": (value, 128), "g_proj.1.bias": (value,),
        "o_norm.weight": (128,), "o_proj.weight": (h, value),
    }  # fmt: skip
    kda_groups = {
        "A_log": (4,), "dt_bias": (64,),
        "q_proj.weight": (32, 64), "k_proj.weight": (32, 64), "v_proj.weight": (128, 64),
        "q_conv1d.weight": (32, 1, 4), "k_conv1d.weight": (32, 1, 4),
        "v_conv1d.weight": (128, 1, 4),
        "q_conv1d.bias": (32,), "k_conv1d.bias": (32,), "v_conv1d.bias": (128,),
        "f_proj.0.weight": (32, 64), "f_proj.1.weight": (64, 32), "b_proj.weight": (4, 64),
        "g_proj.0.weight": (32, 64), "g_proj.1.weight": (128, 32), "g_proj.1.bias": (128,),
        "o_norm.weight": (32,), "o_proj.weight": (64, 128),
    }  # fmt: skip
    gdn = {
        "A_log": (6,), "dt_bias": (6,),
        "q_proj.weight": (1536, h), "k_proj.weight": (1536, h), "v_proj.weight": (3072, h),
        "a_proj.weight": (6, h), "b_proj.weight": (6, h),
        "q_conv1d.weight": (1536, 1, 4), "k_conv1d.weight": (1536, 1, 4),
        "v_conv1d.weight": (3072, 1, 4),
        "g_proj.weight": (3072, h), "o_norm.weight": (512,), "o_proj.weight": (h, 3072),
    }  # fmt: skip
    gdn_ungated = {
        "A_log": (4,), "dt_bias": (4,),
        "q_proj.weight": (32, 64), "k_proj.weight": (32, 64), "v_proj.weight": (128, 64),
        "a_proj.weight": (4, 64), "b_proj.weight": (4, 64),
        "q_conv1d.weight": (32, 1, 4), "k_conv1d.weight": (32, 1, 4),
        "v_conv1d.weight": (128, 1, 4),
        "o_norm.weight": (32,), "o_proj.weight": (64, 128),
    }  # fmt: skip
    gla = {
        "q_proj.weight": (512, 1024), "k_proj.weight": (512, 1024), "v_proj.weight": (1024, 1024),
        "g_proj.weight": (1024, 1024), "gk_proj.0.weight": (16, 1024),
        "gk_proj.1.weight": (512, 16), "gk_proj.1.bias": (512,),
        "o_proj.weight": (1024, 1024), "g_norm_swish_gate.weight": (256,),
    }  # fmt: skip
    gla_groups = {
        "q_proj.weight": (32, 64), "k_proj.weight": (16, 64), "v_proj.weight": (32, 64),
        "g_proj.weight": (64, 64),
        "q_conv1d.weight": (32, 1, 4), "k_conv1d.weight": (16, 1, 4), "v_conv1d.weight": (32, 1, 4),
        "gk_proj.0.weight": (16, 64), "gk_proj.1.weight": (16, 16), "gk_proj.1.bias": (16,),
        "o_proj.weight": (64, 64), "g_norm.weight": (16,),
    }  # fmt: skip
    return locals()[name]


@pytest.mark.parametrize(
    "table, build",
    [
        ("kda", lambda: KimiDeltaAttention()),
        ("kda_groups", lambda: KimiDeltaAttention(64, 2, 16, 2, 4, conv_bias=True)),
        ("gdn", lambda: GatedDeltaNet()),
        ("gdn_ungated", lambda: GatedDeltaNet(64, 2, 16, 2, 4, use_gate=False)),
        ("gla", lambda: GatedLinearAttention()),
        (
            "gla_groups",
            lambda: GatedLinearAttention(
                hidden_size=64, num_kv_heads=2, use_short_conv=True, gate_fn="sigmoid"
            ),
        ),
    ],
)
def test_loads_checkpoints_of_fla(table, build):
    expected = fla_parameters(table)
    with torch.device("meta"):
        built = build()
        checkpoint = {name: torch.empty(shape) for name, shape in expected.items()}
    built.load_state_dict(checkpoint, strict=True, assign=True)
    assert {name: tuple(p.shape) for name, p in built.state_dict().items()} == expected


def test_initial_decays_follow_fla():
    torch.manual_seed(0)
    kda = KimiDeltaAttention(64, 1, 16, 32)
    dt = F.softplus(kda.dt_bias)
    assert 1e-3 * 0.99 < dt.min() and dt.max() < 0.1 * 1.01
    assert math.log(1) <= kda.A_log.min() and kda.A_log.max() <= math.log(16)
    assert torch.equal(
        KimiDeltaAttention(64, 1, 16, 2, safe_gate=True, lower_bound=-5).A_log, torch.zeros(2)
    )
    assert GatedDeltaNet(64, 2, 16, 64).A_log.max() <= math.log(16)
    assert kda.A_log._no_weight_decay and kda.dt_bias._no_weight_decay


K, G, L, N = KimiDeltaAttention, GatedDeltaNet, GatedLinearAttention, LightningAttention


@pytest.mark.parametrize(
    "text, build",
    [
        (r"hidden_size=0: must be an integer of at least 1", lambda: K(0)),
        (r"hidden_size=2.0: must be an integer", lambda: G(2.0)),
        (r"num_heads=0", lambda: G(num_heads=0)),
        (r"num_v_heads=3: must be a multiple of num_heads=2", lambda: K(num_heads=2, num_v_heads=3)),
        (r"head_dim=512: must be at most 256", lambda: K(head_dim=512)),
        (r"expand_v=0.3: times head_dim=16 must be a whole", lambda: G(head_dim=16, expand_v=0.3)),
        (r"mode='fused_chunk': must be one of 'chunk', 'fused_recurrent'",
         lambda: L(mode="fused_chunk")),
        (r"lower_bound=-6: must be None or in \[-5, 0\)", lambda: K(lower_bound=-6)),
        (r"lower_bound=0: must be", lambda: K(lower_bound=0)),
        (r"safe_gate=True: needs lower_bound", lambda: K(safe_gate=True)),
        (r"kernel_size=0", lambda: K(conv_size=0)),
        (r"layer_idx=-1: must be None or", lambda: G(layer_idx=-1)),
        (r"num_kv_heads=3: must divide num_heads=4", lambda: L(num_kv_heads=3)),
        (r"expand_k \* hidden_size=33: must be a multiple of num_heads=4",
         lambda: L(hidden_size=66)),
        (r"feature_map='elu': must be one of", lambda: L(feature_map="elu")),
        (r"gate_fn='tanh': must be one of", lambda: L(gate_fn="tanh")),
        (r"gate_logit_normalizer=0: must be above 0", lambda: L(gate_logit_normalizer=0)),
        (r"gate_low_rank_dim=0: must be", lambda: L(gate_low_rank_dim=0)),
        (r"clamp_min=0.5: must be None or at most 0", lambda: L(clamp_min=0.5)),
        (r"layer_idx=4: must be below num_layers=4", lambda: N(layer_idx=4, num_layers=4)),
        (r"num_layers=0", lambda: N(layer_idx=0, num_layers=0)),
        (r"hidden_states has shape \(2, 3\): must be \[B, T, 48\]",
         lambda: K(48, 1, 16, 1)(torch.zeros(2, 3))),
        (r"hidden_states has batch 2: must be 1 with cu_seqlens",
         lambda: K(48, 1, 16, 1)(torch.zeros(2, 3, 48), cu_seqlens=torch.tensor([0, 3]))),
        (r"layer_idx=None: must be the layer's index when a cache is given",
         lambda: K(48, 1, 16, 1)(torch.zeros(2, 3, 48), DecodeCache())),
    ],
)  # fmt: skip
def test_bad_arguments(text, build):
    with pytest.raises(ValueError, match=text):
        build()


@pytest.mark.parametrize("build", [K, G, L, lambda **k: N(layer_idx=0, num_layers=1, **k)])
def test_unknown_keywords_are_type_errors(build):
    with pytest.raises(TypeError, match="headdim"):
        build(headdim=3)
