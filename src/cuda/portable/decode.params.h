// What recurrent_forward_portable is given. Strides count bytes.
#pragma once

#include <cstdint>

namespace linattn::cuda {

// x / divisor for 0 <= x < 2^31 in a multiply, an add and a shift.
// Granlund and Montgomery, "Division by invariant integers using multiplication", 1994.
struct FastDivisor {
  uint32_t divisor = 1, magic = 1, shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t d) : divisor(d) {
    while ((1ull << shift) < d) ++shift;
    magic = static_cast<uint32_t>(((1ull << 32) * ((1ull << shift) - d)) / d + 1);
  }
};

// A sequence begins at some place of axis `first` and goes on along t. With cu_seqlens both are the
// T axis. Without, `first` is B; but where the batches lie one after the other (or T is 1), it is
// B*T with the steps of T, so that the exact kernels need one product for a token.
struct TokenStride {
  int64_t first, t, h;
};

// The same for strides below 2^31 bytes, next to each other so that one load gets both.
struct ShortTokenStride {
  int32_t first, h;
};

// `row` is the distance of neighbours along the axis that is not contiguous; 256 of them stay
// below 2^31, so that offsets inside a head take 32 bits.
struct StateStride {
  int64_t n, h;
  int32_t row;
};

// Bits of DecodeParams::flags: one test each in the kernel, where a null pointer takes three.
enum DecodeFlag : uint32_t {
  kDecodeVarlen = 1u << 0,
  kDecodePool = 1u << 1,        // state_indices
  kDecodeColumns = 1u << 2,     // state_indices are [N,columns]: a state is written every token
  kDecodeAccepted = 1u << 3,    // num_accepted_tokens
  kDecodeSeparate = 1u << 4,    // output_state_indices
  kDecodeHasInitial = 1u << 5,  // has_initial_state
  kDecodeNullIndex = 1u << 6,   // null_index marks dead rows
  kDecodeReads = 1u << 7,       // there are initial states
  kDecodeWrites = 1u << 8,      // states are wanted
  kDecodeNorm = 1u << 9,        // of q and k
  kDecodeBeta = 1u << 10,       // beta is given
  kDecodeALog = 1u << 11,
  kDecodeBias = 1u << 12,     // dt_bias
  kDecodePrecise = 1u << 13,  // fp32 tokens: gates by full-precision functions
  kDecodeCu64 = 1u << 14,     // 64-bit integers in the named tensor
  kDecodeIndex64 = 1u << 15,
  kDecodeOutput64 = 1u << 16,
  kDecodeAccepted64 = 1u << 17,
  kDecodeAdditive = 1u << 18,  // for the kernels that take both updates
};

struct DecodeParams {
  const char* q;               // [B,T,H,K]
  const char* k;               // [B,T,H,K]
  const char* v;               // [B,T,HV,V]
  const char* g;               // [B,T,HV] or [B,T,HV,K]
  const char* g_gamma;         // [HV], fp32
  const char* beta;            // [B,T,HV]
  const char* A_log;           // [HV], fp32
  const char* dt_bias;         // [HV] or [HV,K]
  const char* state_in;        // [N or slots,HV,V,K] or [..,K,V]
  char* state_out;             // the pool itself with state_indices
  char* o;                     // [B,T,HV,V]
  const char* cu_seqlens;      // [N+1]
  const char* state_indices;   // [N] or [N,columns]
  const char* output_indices;  // likewise
  const char* has_initial;     // [N]
  const char* num_accepted;    // [N]

  TokenStride q_stride, k_stride, v_stride, g_stride, beta_stride, o_stride;
  ShortTokenStride q_short, k_short, v_short, g_short, beta_short, o_short;
  StateStride in_stride, out_stride;
  int64_t g_gamma_stride, A_log_stride, dt_bias_stride;
  int64_t cu_stride, has_stride, accepted_stride;
  int64_t index_stride, index_column_stride, output_stride, output_column_stride;
  int64_t num_slots, null_index;
  int32_t num_tokens, state_columns;
  int32_t tokens_apart;  // between the first tokens of two batches, counted along `first`

  float scale, lower_bound;
  FastDivisor slabs;  // of the value axis, each one warp's work
  FastDivisor heads_v;
  FastDivisor group;   // value heads per q/k head
  uint32_t num_teams;  // with work
  uint32_t flags;
  int32_t num_sequences, dim_k, dim_v;

  int32_t token_type;  // q, k, v, o; LINATTN_F32, LINATTN_BF16 or LINATTN_F16, as the others here
  int32_t g_type, beta_type, dt_bias_type, in_type, out_type;
  int32_t gate, gate_form, beta_form;
};

static_assert(sizeof(DecodeParams) <= 1024, "kernel parameters are read through a small cache");

}  // namespace linattn::cuda
