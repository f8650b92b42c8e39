"""Short convolution and norms of linattn.nn against plain torch."""

import itertools

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from linattn.nn import FusedRMSNormGated, RMSNorm, ShortConvolution  # noqa: E402

WIDTH = 4
DIM = 6


def conv(bias=True, activation="silu", width=WIDTH, dtype=torch.float64):
    torch.manual_seed(width)
    return ShortConvolution(DIM, width, bias=bias, activation=activation, dtype=dtype)


def plain(layer, x, cache):
    """The definition: history, then conv1d, then SiLU."""
    past = x.new_zeros(x.shape[0], DIM, layer.width) if cache is None else cache
    inputs = torch.cat([past, x.transpose(1, 2)], dim=2)
    y = F.conv1d(inputs, layer.weight, layer.bias, groups=DIM)[..., 1:]
    y = y if layer.activation is None else y * y.sigmoid()
    return y.transpose(1, 2), inputs[..., -layer.width :]


@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 4, 5, 70])
@pytest.mark.parametrize("bias, activation", [(True, "silu"), (False, None)])
def test_equals_plain_convolution_with_gradients(num_tokens, with_cache, bias, activation):
    layer = conv(bias, activation)
    x = torch.randn(2, num_tokens, DIM, dtype=torch.float64, requires_grad=True)
    cache = None
    if with_cache:
        cache = torch.randn(2, DIM, WIDTH, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters(), *([cache] if with_cache else [])]
    y, state = layer(x, cache=cache, output_final_state=True)
    y_ref, state_ref = plain(layer, x, cache)
    torch.testing.assert_close(y, y_ref)
    torch.testing.assert_close(state, state_ref)

    dy, dstate = torch.randn_like(y), torch.randn_like(state)

    def gradients(out, final):
        loss = (out * dy).sum() + (final * dstate).sum() + 0 * sum(t.sum() for t in inputs)
        return torch.autograd.grad(loss, inputs)

    for got, want in zip(gradients(y, state), gradients(y_ref, state_ref), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("first", [1, 2, 3, 5])
def test_split_anywhere_equals_whole_with_gradients(first, width):
    layer = conv(width=width)
    x = torch.randn(2, 7, DIM, dtype=torch.float64, requires_grad=True)
    whole, last = layer(x, output_final_state=True)
    a, state = layer(x[:, :first], output_final_state=True)
    b, state = layer(x[:, first:], cache=state, output_final_state=True)
    split = torch.cat([a, b], dim=1)
    torch.testing.assert_close(split, whole)
    torch.testing.assert_close(state, last)
    dy, dstate = torch.randn_like(whole), torch.randn_like(last)
    inputs = [x, *layer.parameters()]
    want = torch.autograd.grad((whole * dy).sum() + (last * dstate).sum(), inputs)
    got = torch.autograd.grad((split * dy).sum() + (state * dstate).sum(), inputs)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("offset_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", [[1], [5, 0, 1, 2, 9], [0, 0, 3], [1, 1, 1, 1], [0]])
@pytest.mark.parametrize("with_cache", [False, True])
def test_packed_equals_separate_with_gradients(lengths, with_cache, offset_type):
    layer = conv()
    total, tail = sum(lengths), 3
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(1, total + tail, DIM, dtype=torch.float64)
    x[:, total:] = float("nan")  # rows that belong to no document
    x.requires_grad_()
    cache = None
    if with_cache:
        cache = torch.randn(len(lengths), DIM, WIDTH, dtype=torch.float64, requires_grad=True)
    y, state = layer(x, cache=cache, output_final_state=True, cu_seqlens=offsets.to(offset_type))
    assert torch.equal(y[:, total:], torch.zeros(1, tail, DIM, dtype=y.dtype))

    pieces, states = [], []
    for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
        past = None if cache is None else cache[n : n + 1]
        piece, final = layer(x[:, begin:end], cache=past, output_final_state=True)
        pieces.append(piece)
        states.append(final)
    separate, final = torch.cat(pieces, dim=1), torch.cat(states)
    torch.testing.assert_close(y[:, :total], separate)
    torch.testing.assert_close(state, final)

    dy, dstate = torch.randn_like(separate), torch.randn_like(final)
    inputs = [x, *layer.parameters(), *([cache] if with_cache else [])]

    def gradients(out, last):
        loss = (out * dy).sum() + (last * dstate).sum()
        return torch.autograd.grad(loss, inputs, allow_unused=True)

    packed = gradients(y[:, :total], state)
    for got, want in zip(packed, gradients(separate, final), strict=True):
        torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want)
    assert torch.equal(packed[0][:, total:], torch.zeros(1, tail, DIM, dtype=y.dtype))


def test_leaves_its_inputs_alone_and_applies_mask_and_residual():
    layer = conv()
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    cache = torch.randn(2, DIM, WIDTH, dtype=torch.float64)
    kept = x.clone(), cache.clone()
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    y, _ = layer(x, residual=x, mask=mask, cache=cache)
    want, _ = plain(layer, x * mask.unsqueeze(-1), cache)
    torch.testing.assert_close(y, want + x)
    layer(x[:, :1], cache=cache, output_final_state=True)
    assert torch.equal(x, kept[0]) and torch.equal(cache, kept[1])


@pytest.mark.parametrize(
    "error, text, call",
    [
        (ValueError, r"kernel_size=0: must be", lambda: ShortConvolution(4, 0)),
        (ValueError, r"hidden_size=-1: must be", lambda: ShortConvolution(-1, 4)),
        (ValueError, r"activation='relu': must be one of 'silu', 'swish'",
         lambda: ShortConvolution(4, 4, activation="relu")),
        (TypeError, r"backend", lambda: ShortConvolution(4, 4, backend="cuda")),
        (ValueError, r"x has shape \(2, 3, 5\): must be \[B, T, 4\]",
         lambda: ShortConvolution(4, 4)(torch.zeros(2, 3, 5))),
        (ValueError, r"cache has shape \(2, 4, 3\): must be \[N, D, W\] = \[2, 4, 4\]",
         lambda: ShortConvolution(4, 4)(torch.zeros(2, 3, 4), cache=torch.zeros(2, 4, 3))),
        (ValueError, r"x has batch 2: must be 1 with cu_seqlens",
         lambda: ShortConvolution(4, 4)(torch.zeros(2, 3, 4), cu_seqlens=torch.tensor([0, 3]))),
        (ValueError, r"cu_seqlens has shape \(1,\)",
         lambda: ShortConvolution(4, 4)(torch.zeros(1, 3, 4), cu_seqlens=torch.tensor([0]))),
        (TypeError, r"cu_seqlens has type torch.float32: must be int32 or int64",
         lambda: ShortConvolution(4, 4)(torch.zeros(1, 3, 4), cu_seqlens=torch.tensor([0.0, 3]))),
        (ValueError, r"mask is given with cu_seqlens",
         lambda: ShortConvolution(4, 4)(
             torch.zeros(1, 3, 4), mask=torch.ones(1, 3), cu_seqlens=torch.tensor([0, 3]))),
        (ValueError, r"mask has shape \(3,\): must be \[1, 3\]",
         lambda: ShortConvolution(4, 4)(torch.zeros(1, 3, 4), mask=torch.ones(3))),
        (ValueError, r"activation='tanh': must be one of",
         lambda: FusedRMSNormGated(4, activation="tanh")),
        (ValueError, r"hidden_size=0: must be", lambda: RMSNorm(0)),
        (ValueError, r"g has shape \(2, 3\): must be that of x, \(2, 4\)",
         lambda: FusedRMSNormGated(4)(torch.zeros(2, 4), torch.zeros(2, 3))),
    ],
)  # fmt: skip
def test_bad_arguments(error, text, call):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("activation", ["swish", "silu", "sigmoid"])
@pytest.mark.parametrize("affine", [True, False])
def test_gated_norm_equals_its_formula(activation, affine):
    torch.manual_seed(0)
    norm = FusedRMSNormGated(8, elementwise_affine=affine, eps=1e-3, activation=activation)
    if affine:
        torch.nn.init.normal_(norm.weight)
    x, g, residual = torch.randn(3, 2, 5, 8)
    weight = norm.weight if affine else 1.0
    gate = g.sigmoid() if activation == "sigmoid" else g * g.sigmoid()

    def formula(z):
        return z / torch.sqrt((z * z).mean(-1, keepdim=True) + 1e-3) * weight * gate

    torch.testing.assert_close(norm(x, g), formula(x))
    y, total = norm(x, g, residual=residual, prenorm=True)
    torch.testing.assert_close(y, formula(x + residual))
    torch.testing.assert_close(total, x + residual)


def test_gated_norm_computes_in_fp32_and_keeps_the_type():
    norm = FusedRMSNormGated(64).to(torch.bfloat16)
    x, g = torch.randn(2, 7, 64).to(torch.bfloat16)
    y = norm(x, g)
    exact = FusedRMSNormGated(64)(x.float(), g.float())
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, exact.to(torch.bfloat16))
    assert norm(x, g, prenorm=True, residual_in_fp32=True)[1].dtype == torch.float32
    assert RMSNorm(64)(x).dtype == torch.bfloat16
