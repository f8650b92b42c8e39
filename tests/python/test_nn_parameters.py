"""Constructors of linattn.nn: parameters of FLA's checkpoints, initial values, bad arguments."""

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
    assert dt.min() > 1e-3 * 0.99 and dt.max() < 0.1 * 1.01
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
        (r"num_v_heads=3: must be a multiple of num_heads=2",
         lambda: K(num_heads=2, num_v_heads=3)),
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
