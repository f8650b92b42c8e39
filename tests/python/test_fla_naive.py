"""A second oracle: references of the installed fla-core, loaded without its kernels."""

import importlib.metadata
import importlib.util

import pytest
import torch
from families import FAMILIES, error, make_inputs

import linattn
from linattn import ops

FORMS = pytest.mark.parametrize("form", ["chunk", "recurrent"])


def naive(path, name):
    """A function of fla.ops by its file's path: the package itself would want triton."""
    try:
        files = importlib.metadata.files("fla-core") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fla-core is not installed")
    found = next((f for f in files if str(f) == f"fla/ops/{path}/naive.py"), None)
    if found is None:
        pytest.skip(f"fla-core {importlib.metadata.version('fla-core')} has no {path}/naive.py")
    spec = importlib.util.spec_from_file_location(f"fla_{path}_naive", found.locate())
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name}, which fla-core's {path}/naive.py imports, is not installed")
    return getattr(module, name)


def kda(q, k, v, g, beta, h0):
    return naive("kda", "naive_recurrent_kda")(
        q, k, v, g, beta, initial_state=h0, output_final_state=True
    )


def kda_chunked(q, k, v, g, beta, h0):
    return naive("kda", "naive_chunk_kda")(
        q, k, v, g, beta, initial_state=h0, output_final_state=True
    )


def gdn(q, k, v, g, beta, h0):
    return naive("gated_delta_rule", "naive_recurrent_gated_delta_rule")(
        q, k, v, beta, g, initial_state=h0, output_final_state=True
    )


def gdn_chunked(q, k, v, g, beta, h0):
    return naive("gated_delta_rule", "naive_chunk_gated_delta_rule")(
        q, k, v, g, beta, initial_state=h0, output_final_state=True
    )


def delta(q, k, v, beta, h0):
    heads_first = (t.transpose(1, 2) for t in (q, k, v, beta))
    o, ht = naive("delta_rule", "delta_rule_recurrence")(*heads_first, initial_state=h0)
    return o.transpose(1, 2), ht


def gla(q, k, v, g, h0):
    return naive("gla", "naive_recurrent_gla")(q, k, v, g, h0, output_final_state=True)


def simple_gla(q, k, v, g, h0):
    return naive("simple_gla", "naive_recurrent_simple_gla")(q, k, v, g, initial_state=h0)


def simple_gla_chunked(q, k, v, g, h0):
    return naive("simple_gla", "naive_chunk_simple_gla")(
        q, k, v, g, initial_state=h0, output_final_state=True
    )


def lightning(q, k, v, h0):
    # FLA's Lightning Attention is its Simple GLA with the layer's constant decays.
    log_decay = ops.lightning_log_decay(v.shape[2], 1, 4)
    return simple_gla(q, k, v, log_decay.expand(v.shape[:3]), h0)


ORACLES = {
    "kda": kda,
    "kda_chunked": kda_chunked,
    "gdn": gdn,
    "gdn_chunked": gdn_chunked,
    "delta": delta,
    "gla": gla,
    "simple_gla": simple_gla,
    "simple_gla_chunked": simple_gla_chunked,
    "lightning": lightning,
}


def run(function, tensors, weights):
    """(o, final state, gradients of a weighted sum of both)."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    o, ht = function(*leaves)
    (o * weights[0]).sum().add((ht * weights[1]).sum()).backward()
    return o.detach(), ht.detach(), [leaf.grad for leaf in leaves]


@FORMS
@pytest.mark.parametrize("oracle", ORACLES)
def test_outputs_and_gradients(oracle, form):
    family = FAMILIES[oracle.removesuffix("_chunked")]
    # kda's references alone take more value heads than query heads, its chunked one whole chunks.
    heads_v = 4 if family.name == "kda" else 2
    tokens = 128 if oracle.endswith("_chunked") else 40
    tensors = make_inputs(family, tokens=tokens, heads_v=heads_v, dim_k=16, dim_v=24)
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(shape, generator=generator)
        for shape in (tensors[2].shape, (2, heads_v, 16, 24))
    ]
    tensors.append(torch.randn(2, heads_v, 16, 24, generator=generator))

    def ours(*inputs):
        result = getattr(family, form)(
            *inputs[:-1], initial_state=inputs[-1], output_final_state=True
        )
        assert linattn.last_implementation() == "cpu"
        return result

    o_ref, ht_ref, gradients_ref = run(ORACLES[oracle], tensors, weights)
    o, ht, gradients = run(ours, tensors, weights)
    assert error(o, o_ref) < 1e-5 and error(ht, ht_ref) < 1e-5
    for name, a, b in zip((*family.names(), "h0"), gradients, gradients_ref, strict=True):
        assert error(a, b) < 2e-5, (name, error(a, b))
