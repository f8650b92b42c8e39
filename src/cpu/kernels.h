// Building blocks of the CPU implementation: one table of functions per instruction set, compiled
// from the same source (simd/*.inl) and chosen once, when the library is loaded.
//
// Conventions
// - Matrices are fp32, row-major, with a row stride (ld) in elements. Columns are computed in whole
//   vectors: every row of a B or C operand must hold padded(columns) floats, and what lies between
//   must be finite (zero, usually). leading(columns) is the stride that scratch should have.
// - An A operand is read by broadcast and has two strides, so A^T costs nothing and needs no
//   padding.
// - Every element of a product is one chain of fused multiply-adds over the inner index in
//   increasing order, from zero. Neither the number of rows nor that of columns changes a bit of
//   an element; row i of a triangular form never reads a row of B on the wrong side of i, so a NaN
//   there cannot reach it.
// - Nothing here allocates or waits. Only files in targets/ may see vector types: those are
//   compiled with flags that other files must not share, so a target's file includes no header
//   with inline functions of the project but this one.
#pragma once

#include <cstdint>

namespace linattn::cpu {

inline constexpr int64_t kLanes = 16;     // floats of the widest vector of any target
inline constexpr int64_t kMaxChunk = 64;  // tokens

constexpr int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
// An odd number of cache lines: a power of two would put a column's rows into a few cache sets.
constexpr int64_t leading(int64_t n) { return (padded(n) / kLanes | 1) * kLanes; }

// Same values as linattn::Type.
enum class Element : int32_t { f32 = 1, bf16 = 2, f16 = 3 };

// Rows of memory that will be read or written soon. A kernel asks for them, into the second-level
// cache, while it computes something else.
struct RowsAhead {
  const char* first = nullptr;
  int64_t stride = 0, bytes = 0, rows = 0;  // stride in bytes
};
inline constexpr int kMostAhead = 5;

// C = row_scale (.) C + A B,  or A B,  or C - A B.
enum class Into : int32_t { set, add, subtract };

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  int64_t a_row = 0, a_col = 1;
  const float* b = nullptr;
  int64_t b_row = 0;
  float* c = nullptr;
  int64_t c_row = 0;
  Into into = Into::set;
  const float* row_scale = nullptr;  // [m], Into::add only: scales what C held
  const RowsAhead* ahead = nullptr;  // [kMostAhead], or null
};

// Triangular products and solves, in place where stated; A is m x m with two strides.
struct Triangular {
  int64_t m = 0, n = 0;
  const float* a = nullptr;
  int64_t a_row = 0, a_col = 1;
  const float* b = nullptr;  // products only
  int64_t b_row = 0;
  float* c = nullptr;
  int64_t c_row = 0;
  Into into = Into::set;  // products only; set or add
};

// What rows of keys and queries are multiplied by where they are left as they were: under the
// decays from the chunk's start, and keys under those to its end. [32], zeros behind the last
// token.
struct TokenFactors {
  float *key = nullptr, *query = nullptr, *right = nullptr;
};

// A chunk of one value head as the state sees it, all gates applied (docs/kernels/cpu.md):
//   R_i = beta_i (V_i - Ka_i S - sum_{j<i} A_ij R_j)      (additive update: R = V)
//   O_i = Qa_i S + sum_{j<=i} P_ij R_j
//   S  <- gamma (.) S + Kr R
// with A_ij = <k_i, k_j> under the decay from j to i (beta stands outside), P_ij likewise from q.
// A is kept divided by `unit` of its row (below).
struct ChunkStep {
  int64_t tokens = 0, dim_k = 0, columns = 0;  // columns of V handled by this call
  const float *ka = nullptr, *qa = nullptr;    // [tokens, dim_k], row stride ld_k
  int64_t ld_k = 0;
  const float* kr = nullptr;  // [dim_k, tokens], row stride ld_c
  int64_t ld_c = 0;
  const float *a = nullptr, *p = nullptr;  // [tokens, tokens], row stride ld_a; a null: additive
  int64_t ld_a = 0;
  const double* unit = nullptr;  // [tokens], delta only
  const float* beta = nullptr;   // [tokens], delta only
  const float* gamma = nullptr;  // [dim_k]
  float* s = nullptr;            // [dim_k, columns], row stride ld_v
  float* r = nullptr;            // in V, out R
  float* o = nullptr;
  int64_t ld_v = 0;
  // chunk_step_tiles only: tile_work_bytes(dim_k), 64-byte aligned, with keys and queries
  // in it from head_record_tiles if there are factors. ka, qa and kr are not read then.
  void* tiles = nullptr;
  TokenFactors factors = {};
  RowsAhead ahead[kMostAhead] = {};
};

inline constexpr int64_t kPanelColumns = 32;
constexpr int64_t tile_work_bytes(int64_t dim_k) {
  return 64 * (5 * dim_k) + (2 * dim_k + 2 * 64 + 2 * 128) * kPanelColumns;
}

// How that record is made. Rows of k and q, and of A and P, take turns, so that a pair of products
// with the same right side is one.
struct ChunkRecord {
  int64_t tokens = 0, dim_k = 0;
  bool delta = false;   // false: k's rows are left as they are, A is not made
  float* kq = nullptr;  // [tokens, 2, ld_k]; in: k and scaled q, normalised if need be; out: Ka, Qa
  int64_t ld_k = 0;
  float* g = nullptr;   // channel: [tokens, ld_k], overwritten; head: [tokens], null without gate
  float* kr = nullptr;  // out [dim_k, ld_c]
  float* ap = nullptr;  // out [tokens, 2, ld_c], right at and below the diagonal (A: below)
  int64_t ld_c = 0;
  // Delta only, [tokens]. A's row i stands divided by <k_i, k_i> but for a power of two, so that a
  // key that repeats meets itself with the number 1; `unit` is by what. A product rounded to fp32
  // would bring the same error with every repetition. Keys under the in-kernel norm count with the
  // length that they would have without rounding.
  double* unit = nullptr;
  const float* inverse_norms = nullptr;  // [tokens] of the keys, or null
  float* gamma = nullptr;                // out [padded(dim_k)]
  float* work = nullptr;                 // record_work(ld_k) floats
};
constexpr int64_t record_work(int64_t ld_k) { return 67 * ld_k + 6 * kMaxChunk; }

// The record of a chunk of bf16 tokens under a head gate, for chunk_step_tiles.
struct TileRecord {
  int64_t tokens = 0, dim_k = 0;
  bool delta = false, norm = false;
  const void *k = nullptr, *q = nullptr;  // rows of bf16, strides in elements
  int64_t k_stride = 0, q_stride = 0;
  float scale = 1;                        // of q
  const float* g = nullptr;               // [tokens], null without gate
  float *ap = nullptr, *gamma = nullptr;  // as ChunkRecord's
  int64_t ld_c = 0;
  double* unit = nullptr;
  TokenFactors factors;  // out
  void* tiles = nullptr;
};

// One token of one value head, state in the caller's memory, for `columns` channels of V:
//   S <- decay (.) S;  u = beta (v - S^T k) or v;  S <- S + k u^T;  o = S^T q.
struct DecodeStep {
  int64_t dim_k = 0, columns = 0;
  bool delta = false, v_first = false;
  const float *q = nullptr, *k = nullptr;  // [dim_k], padded with zeros; q scaled
  const float* decay = nullptr;            // [dim_k], padded with anything finite
  float beta = 1;
  const float* v = nullptr;  // [columns], padded with zeros
  float* o = nullptr;        // [columns], padded
  Element type{};
  const void* s_in = nullptr;  // K-first: rows of V by k; V-first: rows of K by v. Contiguous rows,
  void* s_out = nullptr;       // never written past their end. May be the same memory.
  int64_t ld_in = 0, ld_out = 0;
};

struct Kernels {
  const char* name;

  // Typed, strided memory <-> fp32 rows. Loading writes zeros up to padded(columns).
  void (*load_rows)(const void* source, Element type, int64_t row_stride, int64_t column_stride,
                    int64_t rows, int64_t columns, float* out, int64_t ld);
  void (*store_rows)(const float* rows_in, int64_t ld, int64_t rows, int64_t columns, void* out,
                     Element type, int64_t row_stride, int64_t column_stride);

  // out[j][i] = in[i][j]; in's rows are read to padded(columns), out's written to padded(rows) with
  // zeros.
  void (*transpose)(const float* in, int64_t ld_in, int64_t rows, int64_t columns, float* out,
                    int64_t ld_out);

  void (*gemm)(const Gemm&);
  void (*lower_product)(const Triangular&);  // C (+)= tril(A) B, diagonal included; C is not B
  void (*upper_product)(const Triangular&);  // C (+)= triu(A) B, diagonal included; C is not B
  void (*lower_solve)(const Triangular&);    // C <- (I + tril(A, -1))^-1 C, forward substitution
  void (*upper_solve)(const Triangular&);    // C <- (I + triu(A, 1))^-1 C, backward substitution

  // Elementwise on `n` contiguous floats, in == out allowed. exp: about 1 ulp, -inf gives 0,
  // large gives inf, NaN passes. softplus is linear above 20.
  void (*exp)(const float* in, int64_t n, float* out);
  void (*sigmoid)(const float* in, int64_t n, float* out);
  void (*softplus)(const float* in, int64_t n, float* out);

  // Raw gates to natural-log decays, in place, bias [columns] or null:
  //   softplus: -factor softplus(x + bias);  bounded: lower_bound sigmoid(factor (x + bias)).
  void (*gate_softplus)(float* x, int64_t ld, int64_t rows, int64_t columns, const float* bias,
                        float factor);
  void (*gate_bounded)(float* x, int64_t ld, int64_t rows, int64_t columns, const float* bias,
                       float factor, float lower_bound);

  // out[i] = 1 / sqrt(sum_j x_ij^2 + 1e-6), rows with zeros up to whole vectors; and x_ij *=
  // scale[i] * factor (scale may be null).
  void (*inverse_norms)(const float* x, int64_t ld, int64_t rows, int64_t columns, float* out);
  void (*scale_rows)(float* x, int64_t ld, int64_t rows, int64_t columns, const float* scale,
                     float factor);

  void (*channel_record)(const ChunkRecord&);
  void (*head_record)(const ChunkRecord&);
  void (*chunk_step)(const ChunkStep&);
  // With the products of the state in bf16, for inputs that are no finer: up to 32 tokens, dim_k a
  // multiple of 32, columns one of 16. Null where there are no tile registers.
  void (*chunk_step_tiles)(const ChunkStep&) = nullptr;
  void (*head_record_tiles)(const TileRecord&) = nullptr;
  void (*decode_step)(const DecodeStep&);

  const struct GradientKernels* gradient;  // gradient_kernels.h
};

// The table of this machine, and the tables by name ("baseline", "avx2", "avx512", "amx", "neon"):
// null when the library has no such target or the processor cannot run it.
const Kernels& kernels();
const Kernels* kernels_of(const char* name);
void select_kernels(const Kernels& table);  // for tests, while nothing runs

// Denormals flushed to zero in the calling thread while this lives: decays underflow by design, and
// a denormal operand costs a hundred times a normal one.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace linattn::cpu
