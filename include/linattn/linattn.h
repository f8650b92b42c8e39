/* linattn: linear-attention operators behind one C interface.
 *
 * A call has three parts: a *problem* says what is asked (integers and two numbers, no pointers),
 * a *plan* is how it will be done on one device (pure function of the two), *args* say where the
 * bytes are. Every function returns a status; on a non-zero status linattn_last_error() has the
 * text. Nothing here allocates device memory, prints, aborts, synchronises or throws.
 *
 * Recurrence, per sequence and value head, state S of dim_k x dim_v:
 *   S <- decay_t * S
 *   u_t = v_t (additive)   or   beta_t (v_t - S^T k_t) (delta)
 *   S <- S + k_t u_t^T
 *   o_t = scale * S^T q_t
 * with decay = exp(g) from the gate. docs/recurrence.md has the families as rows of one table.
 */
#ifndef LINATTN_LINATTN_H_
#define LINATTN_LINATTN_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LINATTN_API __declspec(dllexport)
#else
#define LINATTN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define LINATTN_VERSION_MAJOR 0
#define LINATTN_VERSION_MINOR 1
#define LINATTN_VERSION_PATCH 0
/* Rises when a struct gains members; older structs stay accepted through struct_size. */
#define LINATTN_ABI_VERSION 1

/* Status of a call. The class of error is also the class of the Python exception. */
enum {
  LINATTN_OK = 0,
  LINATTN_INVALID_VALUE = 1,  /* wrong shape, size, range, combination: ValueError */
  LINATTN_INVALID_TYPE = 2,   /* wrong element type or device of a tensor: TypeError */
  LINATTN_UNSUPPORTED = 3,    /* legal, but no implementation takes it: DispatchError */
  LINATTN_DEVICE_FAILURE = 4, /* the CUDA runtime reported an error: RuntimeError */
  LINATTN_OUT_OF_MEMORY = 5,  /* the host could not allocate a plan: MemoryError */
  LINATTN_NOT_IMPLEMENTED =
      6 /* legal elsewhere, not offered by this library: NotImplementedError */
};

enum {
  LINATTN_DEVICE_CPU = 0,
  LINATTN_DEVICE_CUDA = 1,
  LINATTN_DEVICE_META = 2, /* never accepted, as LINATTN_DEVICE_OTHER */
  LINATTN_DEVICE_OTHER = 3
};

/* Element types. LINATTN_NONE marks an absent tensor. */
enum {
  LINATTN_NONE = 0,
  LINATTN_F32 = 1,
  LINATTN_BF16 = 2,
  LINATTN_F16 = 3,
  LINATTN_I32 = 4,
  LINATTN_I64 = 5,
  LINATTN_BOOL = 6, /* one byte, zero is false */
  /* never accepted; known so that an error can name them */
  LINATTN_F64 = 7,
  LINATTN_I16 = 8,
  LINATTN_I8 = 9,
  LINATTN_U8 = 10,
  LINATTN_OTHER_TYPE = 11
};

enum {
  LINATTN_KDA = 1,
  LINATTN_GDN = 2,
  LINATTN_DELTA = 3,
  LINATTN_GLA = 4,
  LINATTN_SIMPLE_GLA = 5,
  LINATTN_LIGHTNING = 6
};

enum { LINATTN_CHUNK = 1, LINATTN_RECURRENT = 2 };
enum { LINATTN_FORWARD = 1, LINATTN_BACKWARD = 2 };

/* Where the decay comes from. The shape of g follows: none, [B,T,HV], [B,T,HV,K]; the constant
 * gate is tensor g_gamma [HV]. */
enum {
  LINATTN_GATE_NONE = 0,
  LINATTN_GATE_HEAD_CONSTANT = 1,
  LINATTN_GATE_HEAD = 2,
  LINATTN_GATE_CHANNEL = 3
};

/* What the numbers in g are. */
enum {
  LINATTN_GATE_GIVEN = 0,        /* natural-log decay */
  LINATTN_GATE_RAW_SOFTPLUS = 1, /* log decay = -exp(A_log) * softplus(g + dt_bias) */
  LINATTN_GATE_RAW_BOUNDED = 2   /* log decay = lower_bound * sigmoid(exp(A_log) * (g + dt_bias)) */
};

enum {
  LINATTN_BETA_VALUE = 0,
  LINATTN_BETA_SIGMOID = 1, /* beta = sigmoid(logit) */
  LINATTN_BETA_SIGMOID2 = 2 /* beta = 2 * sigmoid(logit) */
};

/* Bits of linattn_problem.flags. */
enum {
  LINATTN_FLAG_QK_NORM = 1 << 0,         /* x / sqrt(sum x^2 + 1e-6) on q and k, inside */
  LINATTN_FLAG_STATE_V_FIRST = 1 << 1,   /* states are [.., HV, V, K], not [.., HV, K, V] */
  LINATTN_FLAG_SAFE_GATE = 1 << 2,       /* the caller promises log decays in [-5, 0) */
  LINATTN_FLAG_NO_AUTO_CP = 1 << 3,      /* never cut one sequence into parallel segments */
  LINATTN_FLAG_BATCH_INVARIANT = 1 << 4, /* bitwise the same alone as inside any batch */
  LINATTN_FLAG_NULL_STATE_INDEX = 1 << 5 /* null_state_index marks dead rows too */
};

#define LINATTN_MAX_RANK 5

/* One tensor as the caller has it. Sizes and strides are in elements, outermost axis first. */
typedef struct linattn_tensor {
  int32_t type; /* LINATTN_NONE: absent */
  int32_t rank;
  int32_t device_type;
  int32_t device_index;
  int64_t size[LINATTN_MAX_RANK];
  int64_t stride[LINATTN_MAX_RANK];
} linattn_tensor;

/* What is asked. Zero-initialise, set struct_size, fill in. B batch, T tokens, H q/k heads,
 * HV value heads (HV % H == 0), K, V head dimensions, N sequences (cu_seqlens), P pool slots. */
typedef struct linattn_problem {
  uint32_t struct_size;
  int32_t family;
  int32_t form; /* LINATTN_CHUNK or LINATTN_RECURRENT */
  int32_t pass; /* LINATTN_FORWARD or LINATTN_BACKWARD */
  int32_t gate;
  int32_t gate_form;
  int32_t beta_form;
  uint32_t flags;
  int64_t null_state_index;
  int64_t state_every; /* intermediate states: one before every so many tokens; 0 means 64 */
  int32_t force;       /* 0: first that accepts; else linattn_implementation_id() */
  int32_t reserved;    /* zero */
  double scale;        /* the value itself: the default K**-0.5 is the caller's to fill in */
  double lower_bound;  /* raw bounded gate only, in [-5, 0) */

  /* forward inputs */
  linattn_tensor q;             /* [B,T,H,K] */
  linattn_tensor k;             /* [B,T,H,K] */
  linattn_tensor v;             /* [B,T,HV,V] */
  linattn_tensor g;             /* by gate */
  linattn_tensor g_gamma;       /* [HV] f32 */
  linattn_tensor beta;          /* [B,T,HV] */
  linattn_tensor A_log;         /* [HV] f32 */
  linattn_tensor dt_bias;       /* [HV*K] or [HV,K] (channel gate), [HV] (head gate) */
  linattn_tensor initial_state; /* [N,HV,K,V] or v-first; with state_indices the pool [P,..] */
  linattn_tensor cu_seqlens;    /* [N+1] i32/i64 */
  linattn_tensor state_indices; /* [N] or [N,1+S] i32/i64; the pool is updated in place */
  linattn_tensor output_state_indices; /* as state_indices; default: the same slots */
  linattn_tensor has_initial_state;    /* [N] bool */
  linattn_tensor num_accepted_tokens;  /* [N] i32/i64, with 2-D state_indices */
  /* forward outputs */
  linattn_tensor o;                   /* [B,T,HV,V], type of q */
  linattn_tensor final_state;         /* [N,HV,K,V] or v-first; absent with a pool */
  linattn_tensor intermediate_states; /* [B, ceil(T/every), HV, K, V]; varlen [1, bound, ..] */
  /* backward inputs and outputs; absent outputs are not computed */
  linattn_tensor do_; /* [B,T,HV,V] */
  linattn_tensor dht; /* as final_state */
  linattn_tensor dq;
  linattn_tensor dk;
  linattn_tensor dv;
  linattn_tensor dg;
  linattn_tensor dbeta;
  linattn_tensor dA_log;
  linattn_tensor ddt_bias;
  linattn_tensor dh0;
} linattn_problem;

/* Where the bytes are: one pointer for each tensor of the problem, in the same order. A pointer of
 * an absent tensor is ignored. */
typedef struct linattn_args {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* workspace;   /* linattn_plan_workspace_bytes() bytes, any alignment; may be null when 0 */
  const void* q;
  const void* k;
  const void* v;
  const void* g;
  const void* g_gamma;
  const void* beta;
  const void* A_log;
  const void* dt_bias;
  void* initial_state; /* written only when it is a pool */
  const void* cu_seqlens;
  const void* state_indices;
  const void* output_state_indices;
  const void* has_initial_state;
  const void* num_accepted_tokens;
  void* o;
  void* final_state;
  void* intermediate_states;
  const void* do_;
  const void* dht;
  void* dq;
  void* dk;
  void* dv;
  void* dg;
  void* dbeta;
  void* dA_log;
  void* ddt_bias;
  void* dh0;
} linattn_args;

typedef struct linattn_device {
  int32_t type;
  int32_t index;
} linattn_device;

typedef struct linattn_plan_s* linattn_plan_t;

/* "0.1.0" and one line about the build. */
LINATTN_API const char* linattn_version(void);
LINATTN_API const char* linattn_build_info(void);

/* Text of the calling thread's last failed call; "" after none. Valid until its next call. */
LINATTN_API const char* linattn_last_error(void);

/* Validates the problem, walks the implementations for the device, fills in *plan. The plan is
 * immutable, may be used from many threads, and is freed by linattn_plan_destroy (null is fine). */
LINATTN_API int32_t linattn_plan(const linattn_problem* problem, linattn_device device,
                                 linattn_plan_t* plan);
LINATTN_API void linattn_plan_destroy(linattn_plan_t plan);
LINATTN_API int64_t linattn_plan_workspace_bytes(linattn_plan_t plan);
LINATTN_API const char* linattn_plan_implementation(linattn_plan_t plan);

/* Runs a plan. `stream` is a cudaStream_t for a CUDA plan and ignored on the CPU, where the call
 * returns when the work is done. */
LINATTN_API int32_t linattn_run(linattn_plan_t plan, const linattn_args* args, void* stream);

/* JSON texts, written with a closing zero into `buffer` if `capacity` suffices. *length gets the
 * length without the zero in any case, so a call with capacity 0 asks for the size.
 * explain: {"implementation", "device", "target", "refused": {name: reason}, "workspace_bytes",
 * "launches": [{"name", "grid": [x,y,z], "block", "shared_bytes", "note"}]}; target is the
 * instruction set ("avx2"), note how the work is cut, in words, and refusal by all is no error
 * here: implementation is null.
 * implementations: {"<form>_<pass>": {"cpu": [{"name", "available", "reason"}], "cuda": [..]}}. */
LINATTN_API int32_t linattn_explain(const linattn_problem* problem, linattn_device device,
                                    char* buffer, int64_t capacity, int64_t* length);
LINATTN_API int32_t linattn_implementations(char* buffer, int64_t capacity, int64_t* length);

/* Identifier for linattn_problem.force; negative when no implementation has that name. */
LINATTN_API int32_t linattn_implementation_id(const char* name);

/* Rows that intermediate_states must hold: sum over sequences of ceil(length / every), where the
 * lengths are known only on the device this is the bound T/every + N. */
LINATTN_API int64_t linattn_intermediate_rows_bound(int64_t num_tokens, int64_t num_sequences,
                                                    int64_t state_every);

/* Threads of the CPU pool. Set before the first run; 0 keeps the default (LINATTN_NUM_THREADS,
 * else the cores this process may use). */
LINATTN_API int32_t linattn_set_num_threads(int32_t num_threads);
LINATTN_API int32_t linattn_get_num_threads(void);

/* Optional checks of device data (offsets, indices, gate range) before a run; off by default. On
 * the CPU offsets and indices are always checked: that live rows have slots of their own for the
 * first 4096 states of a call. Costs a synchronisation on CUDA. */
LINATTN_API int32_t linattn_set_debug_checks(int32_t enabled);

/* Receives one line for each new plan (level 1) and each failed call (level 2). Null restores the
 * default, which is silent unless LINATTN_VERBOSE=dispatch sends them to stderr. */
typedef void (*linattn_log_function)(int32_t level, const char* message, void* user);
LINATTN_API int32_t linattn_set_log(linattn_log_function function, void* user);

/* Sizes and offsets of the structs as compiled, for bindings to compare with their own:
 * JSON {"<struct>": {"size": n, "members": {name: [offset, size]}}}. */
LINATTN_API int32_t linattn_abi_layout(char* buffer, int64_t capacity, int64_t* length);

#ifdef __cplusplus
}
#endif
#endif
