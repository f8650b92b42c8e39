"""Bad calls written out one by one: ranges, offsets, combinations, what is not offered."""

from __future__ import annotations

import torch
from bad_calls import HV, SLOTS, B, H, K, Row, T, V, leaf, offsets, pool

V_, N_, T_ = ValueError, NotImplementedError, TypeError
KDA, RKDA, SERVE = "chunk_kda", "fused_recurrent_kda", "fused_recurrent_kda_fwd"
GDN, RGDN = "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"
DELTA, RDELTA = "chunk_delta_rule", "fused_recurrent_delta_rule"
GLA, RGLA = "chunk_gla", "fused_recurrent_gla"
SIMPLE, RSIMPLE = "chunk_simple_gla", "fused_recurrent_simple_gla"
LIGHT, RLIGHT = "chunk_lightning_attn", "fused_recurrent_lightning_attn"
BWD = "chunk_kda_bwd"

nan, inf = float("nan"), float("inf")
raw = {"use_gate_in_kernel": True}
A_log, bias = torch.zeros(HV), torch.zeros(HV, K)


def state(*shape, **more):
    return lambda a: {"initial_state": torch.zeros(shape or (B, HV, K, V)), **more}


def spec(columns=T, **more):
    table = torch.arange(B * columns).view(B, columns) % SLOTS
    return pool(**{"state_indices": table, **more})


RANGES = [
    (KDA, {"scale": nan}, V_, "scale is nan", "allowed: any finite number"),
    (RGDN, {"scale": inf}, V_, "scale is inf", "allowed: any finite number"),
    (DELTA, {"scale": "1"}, T_, "scale has type str", "allowed: a real number"),
    (GLA, {"scale": torch.tensor(1.0)}, T_, "scale has type Tensor", "allowed: a real number"),
    (KDA, {**raw, "lower_bound": -6.0}, V_, "lower_bound is -6", "allowed: [-5, 0)"),
    (KDA, {**raw, "lower_bound": 0.0}, V_, "lower_bound is 0", "allowed: [-5, 0)"),
    (RKDA, {**raw, "lower_bound": nan}, V_, "lower_bound is nan", "allowed: [-5, 0)"),
    (RKDA, {**raw, "lower_bound": "-5"}, T_, "lower_bound has type str", "a real number"),
    (KDA, {"lower_bound": -5.0}, V_, "lower_bound is -5", "use_gate_in_kernel=True"),
    (KDA, {"lower_bound": 0.0}, V_, "lower_bound is 0", "use_gate_in_kernel=True"),
    (KDA, {"chunk_size": 48}, V_, "chunk_size is 48", "allowed: 32, 64"),
    (GDN, {"chunk_size": 128}, V_, "chunk_size is 128", "allowed: 16, 32, 64"),
    (DELTA, {"chunk_size": 0}, V_, "chunk_size is 0", "allowed: 16, 32, 64"),
    (SIMPLE, {"chunk_size": 48}, V_, "chunk_size is 48", "allowed: a power of two"),
    (LIGHT, {"chunk_size": "64"}, T_, "chunk_size has type str", "allowed: an integer"),
    *(
        (op, {"state_every": 100, "return_intermediate_states": True}, V_, "state_every is 100",
         "allowed: a positive multiple of 64")
        for op in (KDA, GDN, DELTA, GLA, SIMPLE, LIGHT)
    ),
    (KDA, {"state_every": -64, "return_intermediate_states": True}, V_, "state_every is -64",
     "allowed: a positive multiple of 64"),
    (GLA, {"state_every": 64}, V_, "state_every is 64", "without intermediate states"),
    (GLA, {"state_every": 64.0}, T_, "state_every has type float", "allowed: an integer"),
    (LIGHT, {"layer_idx": 4}, V_, "layer_idx is 4", "allowed: 0 to num_layers - 1 = 3"),
    (RLIGHT, {"layer_idx": -1}, V_, "layer_idx is -1", "allowed: 0 to num_layers - 1 = 3"),
    (RLIGHT, {"num_layers": 0}, V_, "num_layers is 0", "allowed: at least 1"),
    (LIGHT, {"layer_idx": None}, T_, "layer_idx has type NoneType", "allowed: int"),
    (SIMPLE, {"g": None, "g_gamma": torch.zeros(H)}, V_, "g_gamma has shape [2]",
     "allowed: [HV] = [4]"),
    (SIMPLE, {"g_gamma": torch.zeros(H)}, V_, "g_gamma has shape [2]", "allowed: [HV] = [4]"),
    (SIMPLE, {"g": None, "g_gamma": A_log.bfloat16()}, T_, "g_gamma has type bfloat16",
     "allowed: float32"),
    (RSIMPLE, {"g_gamma": 0.5}, T_, "g_gamma has type float", "allowed: torch.Tensor"),
    (KDA, {**raw, "A_log": torch.zeros(H)}, V_, "A_log has shape [2]", "allowed: [HV] = [4]"),
    (KDA, {**raw, "A_log": A_log.bfloat16()}, T_, "A_log has type bfloat16", "allowed: float32"),
    (KDA, {**raw, "A_log": A_log.to("meta")}, T_, "A_log is on meta", "cpu"),
    (KDA, {**raw, "A_log": A_log, "dt_bias": bias[:, 1:]}, V_, "dt_bias has shape [4,7]",
     "allowed: [HV,K] or [HV*K] = [4,8]"),
    (KDA, {**raw, "A_log": A_log, "dt_bias": torch.zeros(HV)}, V_, "dt_bias has shape [4]",
     "allowed: [HV*K] or [HV,K] = [32]"),
    (GDN, {**raw, "A_log": A_log, "dt_bias": bias}, V_, "dt_bias has shape [4,8]",
     "allowed: [HV] = [4]"),
    (RGDN, {**raw, "A_log": A_log, "dt_bias": A_log.half()}, T_, "dt_bias has type float16",
     "allowed: float32, bfloat16"),
    (KDA, state(output_final_state=True, output_state_dtype=torch.float64), T_,
     "output_state_dtype is torch.float64", "allowed: torch.float32, torch.bfloat16"),
    (KDA, {"output_state_dtype": torch.bfloat16}, V_, "output_state_dtype is torch.bfloat16",
     "output_final_state is False"),
]  # fmt: skip

OFFSETS = [
    (KDA, offsets(0, 4, 3, 6), V_, "cu_seqlens[2] is 3", "allowed: at least cu_seqlens[1] = 4"),
    (RKDA, offsets(1, 6), V_, "cu_seqlens[0] is 1", "allowed: 0"),
    (GDN, offsets(-1, 6), V_, "cu_seqlens[0] is -1", "allowed: 0"),
    (GDN, offsets(0, 3, 7), V_, "cu_seqlens[2] is 7", "allowed: at most T = 6"),
    (RGLA, offsets(0, 2**31 - 1), V_, "cu_seqlens[1] is 2147483647", "allowed: at most T = 6"),
    (DELTA, offsets(0), V_, "cu_seqlens has shape [1]", "allowed: [N+1] with N >= 1"),
    (GLA, {"cu_seqlens": torch.tensor([0, 6])}, V_, "q has B = 2 with cu_seqlens",
     "allowed: B = 1"),
    (SIMPLE, lambda a: {**offsets(0, 6)(a), "cu_seqlens": torch.tensor([0.0, 6.0])}, T_,
     "cu_seqlens has type float32", "allowed: int32, int64"),
    (RSIMPLE, lambda a: {**offsets(0)(a), "cu_seqlens": torch.tensor([[0, 6]])}, V_,
     "cu_seqlens has shape [1,2]", "allowed: [N+1]"),
    (LIGHT, lambda a: {**offsets(0)(a), "cu_seqlens": torch.tensor(6)}, V_, "cu_seqlens has 0 axes",
     "allowed: 1 to 5"),
    (LIGHT, lambda a: {**offsets(0)(a), "cu_seqlens": torch.tensor([0, 6], device="meta")}, T_,
     "cu_seqlens is on meta", "cpu"),
    (RLIGHT, lambda a: {**offsets(0)(a), "cu_seqlens": [0, 6]}, T_, "cu_seqlens has type list",
     "allowed: torch.Tensor"),
    (KDA, offsets(0, 2, 6, initial_state=torch.zeros(1, HV, K, V)), V_,
     "initial_state has shape [1,4,8,6]", "allowed: [N,HV,K,V] = [2,4,8,6]"),
    (KDA, {"cu_seqlens_cpu": torch.tensor([0, 6])}, V_, "cu_seqlens_cpu is given without",
     "cu_seqlens"),
    (KDA, offsets(0, 6, cu_seqlens_cpu=torch.tensor([0, 3, 6])), V_,
     "cu_seqlens_cpu has shape [3]", "allowed: that of cu_seqlens, [2]"),
    (KDA, offsets(0, 6, cu_seqlens_cpu=[0, 6]), T_, "cu_seqlens_cpu has type list",
     "allowed: torch.Tensor"),
    (GDN, {"chunk_indices": torch.zeros(1, 2, dtype=torch.long)}, V_, "chunk_indices is given",
     "cu_seqlens"),
    (KDA, offsets(0, 6, chunk_indices=torch.zeros(3)), V_, "chunk_indices has shape [3]",
     "allowed: [chunks,2]"),
    (KDA, offsets(0, 6, chunk_indices=torch.zeros(3, 2)), T_, "chunk_indices has type float32",
     "allowed: int32, int64"),
    (RKDA, lambda a: {**offsets(0, 5, 6)(a), **spec(3)(a)}, V_,
     "cu_seqlens gives sequence 0 5 tokens", "allowed: at most the 3 columns of state_indices"),
]  # fmt: skip

COMBINATIONS = [
    (KDA, raw, V_, "A_log is None", "use_gate_in_kernel=True"),
    (GDN, raw, V_, "A_log is None", "use_gate_in_kernel=True"),
    (RGDN, lambda a: {**raw, "gk": torch.zeros(B, T, HV, K)}, V_, "A_log is None",
     "use_gate_in_kernel=True"),
    (RGDN, lambda a: {**raw, "A_log": A_log, "g": None, "gk": torch.zeros(B, T, HV, K)}, V_,
     "g is None", "use_gate_in_kernel=True"),
    (RGDN, {**raw, "A_log": A_log, "g": None}, V_, "use_gate_in_kernel is True", "needs g"),
    (RGDN, lambda a: {"gk": torch.zeros(B, T, HV, K + 1)}, V_, "gk has shape [2,6,4,9]",
     "allowed: [B,T,HV,K] = [2,6,4,8]"),
    (RGDN, lambda a: {"g": None, "gk": torch.zeros(B, T, HV)}, V_, "gk has shape [2,6,4]",
     "allowed: [B,T,HV,K] = [2,6,4,8]"),
    (RGDN, lambda a: {"gk": [0.0]}, T_, "gk has type list", "allowed: torch.Tensor"),
    (KDA, {"A_log": A_log}, V_, "A_log of shape [4] is given", "must be None unless"),
    (GDN, {"dt_bias": A_log}, V_, "dt_bias of shape [4] is given", "must be None unless"),
    (KDA, {"g": None}, V_, "g is None", "required by the channel gate"),
    (GDN, {"g": None}, V_, "g is None", "required by the head gate"),
    (GLA, {"g": None}, V_, "g is None", "required by the channel gate"),
    (KDA, {"q": None}, T_, "q has type NoneType", "allowed: torch.Tensor"),
    (RGDN, {"beta": None, "use_beta_sigmoid_in_kernel": True}, V_, "beta is None",
     "use_beta_sigmoid_in_kernel=True needs its logits"),
    (KDA, {"allow_neg_eigval": True}, V_, "allow_neg_eigval is True",
     "needs use_beta_sigmoid_in_kernel=True"),
    (RGDN, {"allow_neg_eigval": True}, V_, "allow_neg_eigval is True",
     "needs use_beta_sigmoid_in_kernel=True"),
    (KDA, {"state_v_first": True, "transpose_state_layout": False}, V_, "state_v_first is True",
     "transpose_state_layout"),
    (KDA, {"has_initial_state": torch.tensor([True, False])}, V_, "initial_state is None",
     "required by has_initial_state"),
    (KDA, state(has_initial_state=torch.tensor([True])), V_, "has_initial_state has shape [1]",
     "allowed: [N] = [2]"),
    (RKDA, state(has_initial_state=torch.tensor([1, 0])), T_, "has_initial_state has type int64",
     "allowed: bool"),
    (RKDA, state(has_initial_state=torch.tensor([True, False], device="meta")), T_,
     "has_initial_state is on meta", "cpu"),
    (KDA, {"state_indices": torch.tensor([1, 0])}, V_, "initial_state is None", "the pool"),
    (RKDA, state(output_state_indices=torch.tensor([1, 0])), V_,
     "output_state_indices of shape [2] is given", "must be None without state_indices"),
    (RKDA, state(num_accepted_tokens=torch.tensor([1, 1])), V_,
     "num_accepted_tokens of shape [2] is given", "must be None without state_indices"),
    (RKDA, state(null_state_index=0), V_, "null_state_index is 0", "without state_indices"),
    (RKDA, pool(null_state_index=0.5), T_, "null_state_index has type float",
     "allowed: an integer"),
    (RKDA, pool(num_accepted_tokens=torch.tensor([1, 1])), V_,
     "num_accepted_tokens is given with state_indices of shape [2]", "allowed with [N,1+S]"),
    (RKDA, spec(num_accepted_tokens=torch.tensor([[1, 1]])), V_,
     "num_accepted_tokens has shape [1,2]", "allowed: [N] = [2]"),
    (RKDA, spec(num_accepted_tokens=torch.tensor([1.0, 1.0])), T_,
     "num_accepted_tokens has type float32", "allowed: int32, int64"),
    (RKDA, spec(T - 1), V_, "state_indices has 5 columns for T = 6", "allowed: at least one"),
    (KDA, spec(), V_, "state_indices has shape [2,6]", "allowed for the chunk form: [N]"),
    (RKDA, pool(state_indices=torch.tensor([1.0, 0.0])), T_, "state_indices has type float32",
     "allowed: int32, int64"),
    (RKDA, pool(output_state_indices=torch.tensor([1, 0, 2])), V_,
     "output_state_indices has shape [3]", "allowed: [N] = [2]"),
    (RKDA, spec(output_state_indices=torch.tensor([1, 0])), V_,
     "output_state_indices has shape [2]", "allowed: [N,1+S] = [2,6]"),
    (RKDA, pool(initial_state=torch.zeros(SLOTS, HV, V, K).mT), V_,
     "initial_state has strides [192,48,1,8]", "each slot must be contiguous"),
    (RKDA, pool(initial_state=torch.zeros(1, HV, K, V).expand(SLOTS, -1, -1, -1)), V_,
     "initial_state has strides [0,48,6,1]", "an output must not"),
    (RKDA, pool(initial_state=torch.zeros(SLOTS, K, V)), V_, "initial_state has shape [5,8,6]",
     "allowed with state_indices: a pool [slots,HV,K,V]"),
    (RKDA, pool(output_final_state=True, output_state_dtype=torch.float32), V_,
     "output_state_dtype is torch.float32 with state_indices", "the pool keeps its own type"),
    (SERVE, {"initial_state": None}, V_, "initial_state is None", "inplace_final_state=True"),
    (SERVE, {"initial_state": 3}, T_, "initial_state has type int", "allowed: torch.Tensor"),
    (SERVE, lambda a: {"ssm_state_indices": torch.tensor([0])}, V_,
     "ssm_state_indices has shape [1]", "allowed: [N] = [2]"),
    (SERVE, {"ssm_state_indices": torch.tensor([1, 0]), "inplace_final_state": False}, N_,
     "inplace_final_state is False", "updates a pool in place"),
]  # fmt: skip

GATES_ALONE = [
    ("fused_kda_gate", {"g": 3.0}, T_, "g has type float", "allowed: torch.Tensor"),
    ("fused_kda_gate", {"g": torch.zeros(K)}, V_, "g has shape [8]", "allowed: [...,HV,K]"),
    ("fused_kda_gate", {"A_log": torch.zeros(1)}, V_, "A_log has shape [1]",
     "allowed: [HV] = [4]"),
    ("fused_kda_gate", {"A_log": None}, V_, "A_log is None", "allowed with lower_bound alone"),
    ("fused_kda_gate", {"dt_bias": torch.zeros(HV)}, V_, "dt_bias has shape [4]",
     "allowed: [HV*K] or [HV,K] = [32]"),
    ("fused_gdn_gate", {"A_log": torch.zeros(T, HV)}, V_, "A_log has shape [6,4]",
     "allowed: [HV] = [4]"),
    ("fused_gdn_gate", {"dt_bias": torch.zeros(1)}, V_, "dt_bias has shape [1]",
     "allowed: [HV] = [4]"),
    ("fused_gdn_gate", {"g": torch.zeros(B, T, HV).long()}, T_, "g has type int64",
     "allowed: float32, bfloat16, float16, float64"),
]  # fmt: skip

SWITCHES = [
    (KDA, {"output_final_state": "no"}, T_, "output_final_state has type str", "allowed: bool"),
    (RGLA, lambda a: {"output_final_state": a["q"]}, T_, "output_final_state has type Tensor",
     "allowed: bool"),
    (KDA, {"use_qk_l2norm_in_kernel": "yes"}, T_, "use_qk_l2norm_in_kernel has type str",
     "allowed: bool"),
    (KDA, {"use_gate_in_kernel": 0.5}, T_, "use_gate_in_kernel has type float", "allowed: bool"),
    (GDN, {"use_beta_sigmoid_in_kernel": []}, T_, "use_beta_sigmoid_in_kernel has type list",
     "allowed: bool"),
    (GDN, {"allow_neg_eigval": "x"}, T_, "allow_neg_eigval has type str", "allowed: bool"),
    (GLA, {"state_v_first": "vk"}, T_, "state_v_first has type str", "allowed: bool"),
    (KDA, {"safe_gate": "x"}, T_, "safe_gate has type str", "allowed: bool"),
    (DELTA, {"auto_cp": "off"}, T_, "auto_cp has type str", "allowed: bool"),
    (DELTA, {"batch_invariant": "off"}, T_, "batch_invariant has type str", "allowed: bool"),
    (SIMPLE, {"return_intermediate_states": "x"}, T_, "return_intermediate_states has type str",
     "allowed: bool"),
    (KDA, {"transpose_state_layout": "x"}, T_, "transpose_state_layout has type str",
     "allowed: bool"),
    (SERVE, {"inplace_final_state": "x"}, T_, "inplace_final_state has type str", "allowed: bool"),
]  # fmt: skip

NOT_OFFERED = [
    *((op, {"cp_context": object()}, N_, "cp_context is", "cp_context=None alone")
      for op in (KDA, GDN)),
    *((op, {"head_first": True}, N_, "head_first is True", "head_first=False alone")
      for op in (GDN, DELTA, SIMPLE, LIGHT, RLIGHT)),
    *((op, {"reverse": True}, N_, "reverse is True", "reverse=False alone")
      for op in (RGLA, RSIMPLE, RLIGHT)),
    *((op, {"gv": torch.zeros(1)}, N_, "gv is a tensor of shape [1]", "gv=None alone")
      for op in (RGLA, RGDN)),
    *((op, {"beta": torch.rand(B, T, HV, V)}, N_, "beta has shape [2, 6, 4, 6]",
       "linattn offers one for every head alone, [B,T,HV]")
      for op in (KDA, RKDA, GDN, RGDN, DELTA, RDELTA)),
]  # fmt: skip

GRADIENTS = [
    *((op, pool(q=leaf("q")), RuntimeError, "state_indices is given", "torch.no_grad()")
      for op in (KDA, RGDN, RLIGHT)),
    *((op, lambda a: {"v": leaf("v")(a), "out": torch.zeros(B, T, HV, V)}, RuntimeError,
       "out is given", "torch.no_grad()") for op in (GDN, RSIMPLE)),
    *((op, lambda a: {"out": torch.zeros(B, T, HV, V, requires_grad=True)}, RuntimeError,
       "out is given and it", "torch.no_grad()") for op in (KDA, RLIGHT)),
    (BWD, lambda a: {"do": a["do"][:, 1:]}, V_, "do has shape [2,5,4,6]",
     "allowed: [B,T,HV,V] = [2,6,4,6]"),
    (BWD, lambda a: {"do": a["do"].half()}, T_, "do has type float16",
     "allowed: float32, the type of q"),
    (BWD, lambda a: {"do": a["do"].to("meta")}, T_, "do is on meta", "cpu"),
    (BWD, {"do": None}, T_, "do has type NoneType", "allowed: torch.Tensor"),
    (BWD, {"dht": torch.zeros(B, HV, V, K)}, V_, "dht has shape [2,4,6,8]",
     "allowed: [N,HV,K,V] = [2,4,8,6]"),
    (BWD, {"dht": torch.zeros(B, HV, K, V).double()}, T_, "dht has type float64",
     "allowed: float32"),
    (BWD, {"wanted": ("dz",)}, V_, "wanted has 'dz'", "allowed: dq, dk"),
    (BWD, {"wanted": ("dA_log",)}, V_, "wanted has 'dA_log'; A_log was None",
     "allowed: the gradients of given inputs"),
    (BWD, {"wanted": "dq"}, T_, "wanted has type str", "allowed: a tuple"),
    (BWD, {"saved": 3}, T_, "saved has type int", "allowed: the result of the forward"),
]  # fmt: skip


def rows():
    parts = (RANGES, OFFSETS, COMBINATIONS, GATES_ALONE, SWITCHES, NOT_OFFERED, GRADIENTS)
    for op, change, error, *texts in (row for part in parts for row in part):
        yield Row(op, change, error, tuple(texts), texts[0])
