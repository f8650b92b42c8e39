"""The operators: names, argument order and defaults of flash-linear-attention's ``fla.ops``.

Every operator takes CPU and CUDA tensors, is differentiable, and works under ``torch.compile``,
``torch.export`` and autocast (which casts q, k and v; gates, beta and states keep their types).
What is special to one is in its own docstring; the rest is here.

``scale``
    Factor of q, default ``K ** -0.5``. 0 means zero.
``initial_state``, ``output_final_state``, ``state_v_first``, ``output_state_dtype``
    States are ``[N,HV,K,V]`` for N sequences, with ``state_v_first`` ``[N,HV,V,K]``, in fp32, bf16
    or fp16. The final state is fp32 unless ``output_state_dtype`` says otherwise, and None unless
    ``output_final_state``.
``cu_seqlens``, ``cu_seqlens_cpu``
    ``[N+1]`` offsets, int32 or int64, of sequences packed along T (B is 1 then). Rows past the
    last belong to no sequence: outputs and gradients there are zero. The CPU copy is a hint.
``use_qk_l2norm_in_kernel``
    q and k become ``x / sqrt(sum(x^2) + 1e-6)`` inside.
``use_beta_sigmoid_in_kernel``, ``allow_neg_eigval``
    ``beta`` is logits, of which the sigmoid or twice the sigmoid is taken.
``return_intermediate_states``, ``state_every``
    Also returns the state before every 64 (or ``state_every``) tokens of each sequence,
    ``[B,ceil(T/64),HV,K,V]`` in the type of k; packed sequences number theirs one after the other
    (where offsets are on a GPU and no CPU copy is given: room for ``T//64 + N``).
``state_indices``, ``output_state_indices``, ``null_state_index``
    ``initial_state`` is a pool ``[slots,HV,..]``; sequence n starts from slot ``state_indices[n]``
    and its state is written back there in place, or to ``output_state_indices[n]``. The final
    state returned is the pool. An index outside the pool, or equal to ``null_state_index``, makes
    the row dead: its output is zero and no state is touched.
``num_accepted_tokens``
    With ``state_indices [N,1+S]``: start from column ``num_accepted_tokens[n] - 1``; the state
    after token j goes to column j.
``has_initial_state``
    ``[N]`` bool; false starts from zero whatever the state holds.
``out``
    The output is written there.
``auto_cp``, ``batch_invariant``
    Whether one long sequence may be cut into parallel segments (exact up to rounding); whether a
    sequence's result must be bitwise the same alone and in any batch.

Raised: ``ValueError`` for a shape, value or combination, ``TypeError`` for a type, device or
unknown keyword, ``NotImplementedError`` for what FLA has and linattn has not,
``linattn.DispatchError`` where no implementation takes a legal problem.
"""

from .delta_rule import (
    chunk_delta_rule,
    chunk_delta_rule_bwd,
    chunk_delta_rule_fwd,
    fused_recurrent_delta_rule,
    naive_recurrent_delta_rule,
)
from .gated_delta_rule import (
    chunk_gated_delta_rule,
    chunk_gated_delta_rule_bwd,
    chunk_gated_delta_rule_fwd,
    chunk_gdn,
    fused_gdn_gate,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gdn,
    naive_recurrent_gated_delta_rule,
)
from .gla import (
    chunk_gla,
    chunk_gla_bwd,
    chunk_gla_fwd,
    fused_recurrent_gla,
    naive_recurrent_gla,
)
from .kda import (
    chunk_kda,
    chunk_kda_bwd,
    chunk_kda_fwd,
    fused_kda_gate,
    fused_recurrent_kda,
    fused_recurrent_kda_fwd,
    naive_recurrent_kda,
)
from .lightning_attn import (
    chunk_lightning_attn,
    chunk_lightning_attn_bwd,
    chunk_lightning_attn_fwd,
    fused_recurrent_lightning_attn,
    lightning_log_decay,
    naive_recurrent_lightning_attn,
)
from .simple_gla import (
    chunk_simple_gla,
    chunk_simple_gla_bwd,
    chunk_simple_gla_fwd,
    fused_recurrent_simple_gla,
    naive_recurrent_simple_gla,
)

__all__ = [
    "chunk_delta_rule",
    "chunk_delta_rule_bwd",
    "chunk_delta_rule_fwd",
    "chunk_gated_delta_rule",
    "chunk_gated_delta_rule_bwd",
    "chunk_gated_delta_rule_fwd",
    "chunk_gdn",
    "chunk_gla",
    "chunk_gla_bwd",
    "chunk_gla_fwd",
    "chunk_kda",
    "chunk_kda_bwd",
    "chunk_kda_fwd",
    "chunk_lightning_attn",
    "chunk_lightning_attn_bwd",
    "chunk_lightning_attn_fwd",
    "chunk_simple_gla",
    "chunk_simple_gla_bwd",
    "chunk_simple_gla_fwd",
    "fused_gdn_gate",
    "fused_kda_gate",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
    "fused_recurrent_gla",
    "fused_recurrent_kda",
    "fused_recurrent_kda_fwd",
    "fused_recurrent_lightning_attn",
    "fused_recurrent_simple_gla",
    "lightning_log_decay",
    "naive_recurrent_delta_rule",
    "naive_recurrent_gated_delta_rule",
    "naive_recurrent_gla",
    "naive_recurrent_kda",
    "naive_recurrent_lightning_attn",
    "naive_recurrent_simple_gla",
]
