/* A KDA layer as a server runs it: one chunked prefill of the prompt, then token by token from the
 * carried state. The result is compared with one run over the whole sequence. */
#include <linattn/linattn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 2, DIM_K = 32, DIM_V = 64, PROMPT = 100, NEW = 12, TOKENS = PROMPT + NEW };

static const linattn_device cpu = {LINATTN_DEVICE_CPU, 0};

static float q[TOKENS * HEADS * DIM_K], k[TOKENS * HEADS * DIM_K], v[TOKENS * HEADS * DIM_V];
static float g[TOKENS * HEADS * DIM_K], beta[TOKENS * HEADS];
static float o[TOKENS * HEADS * DIM_V], whole_o[TOKENS * HEADS * DIM_V];
static float state[HEADS * DIM_K * DIM_V], next[HEADS * DIM_K * DIM_V];

static void check(int32_t status) {
  if (status == LINATTN_OK) return;
  fprintf(stderr, "linattn: %s (status %d)\n", linattn_last_error(), (int)status);
  exit(1);
}

/* Contiguous fp32, last axis fastest. */
static linattn_tensor tensor(int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  linattn_tensor t = {.type = LINATTN_F32, .rank = rank, .size = {a, b, c, d}};
  int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    t.stride[axis] = stride;
    stride *= t.size[axis];
  }
  return t;
}

static linattn_problem describe(int32_t form, int64_t tokens) {
  const linattn_tensor key = tensor(4, 1, tokens, HEADS, DIM_K);
  const linattn_tensor value = tensor(4, 1, tokens, HEADS, DIM_V);
  const linattn_tensor states = tensor(4, 1, HEADS, DIM_K, DIM_V);
  return (linattn_problem){
      .struct_size = sizeof(linattn_problem),
      .family = LINATTN_KDA,
      .form = form,
      .pass = LINATTN_FORWARD,
      .gate = LINATTN_GATE_CHANNEL,
      .flags = LINATTN_FLAG_QK_NORM,
      .scale = 1 / sqrt(DIM_K),
      .q = key,
      .k = key,
      .v = value,
      .g = key, /* as many value heads as query heads here */
      .beta = tensor(3, 1, tokens, HEADS, 0),
      .initial_state = states,
      .o = value,
      .final_state = states,
  };
}

typedef struct layer {
  linattn_plan_t plan;
  void* workspace;
} layer;

static layer make_layer(int32_t form, int64_t tokens) {
  const linattn_problem problem = describe(form, tokens);
  layer made = {NULL, NULL};
  check(linattn_plan(&problem, cpu, &made.plan));
  const size_t bytes = (size_t)linattn_plan_workspace_bytes(made.plan);
  made.workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  printf("%s: %s, %zu bytes of workspace\n", form == LINATTN_CHUNK ? "chunk" : "recurrent",
         linattn_plan_implementation(made.plan), bytes);
  return made;
}

static void free_layer(layer made) {
  linattn_plan_destroy(made.plan);
  free(made.workspace);
}

static void run(layer made, int64_t first, float* out) {
  const linattn_args args = {
      .struct_size = sizeof(linattn_args),
      .workspace = made.workspace,
      .q = q + first * HEADS * DIM_K,
      .k = k + first * HEADS * DIM_K,
      .v = v + first * HEADS * DIM_V,
      .g = g + first * HEADS * DIM_K,
      .beta = beta + first * HEADS,
      .initial_state = state,
      .o = out + first * HEADS * DIM_V,
      .final_state = next,
  };
  check(linattn_run(made.plan, &args, NULL));
  for (int i = 0; i < HEADS * DIM_K * DIM_V; ++i) state[i] = next[i];
}

static float uniform(void) { return (float)rand() / (float)RAND_MAX; }

int main(void) {
  for (int i = 0; i < TOKENS * HEADS * DIM_K; ++i) {
    q[i] = uniform() - 0.5f;
    k[i] = uniform() - 0.5f;
    g[i] = -uniform(); /* natural-log decay */
  }
  for (int i = 0; i < TOKENS * HEADS * DIM_V; ++i) v[i] = uniform() - 0.5f;
  for (int i = 0; i < TOKENS * HEADS; ++i) beta[i] = uniform();

  printf("linattn %s\n", linattn_version());
  const layer prefill = make_layer(LINATTN_CHUNK, PROMPT);
  const layer decode = make_layer(LINATTN_RECURRENT, 1);
  const layer whole = make_layer(LINATTN_CHUNK, TOKENS);

  run(prefill, 0, o);
  for (int token = PROMPT; token < TOKENS; ++token) run(decode, token, o);
  for (int i = 0; i < HEADS * DIM_K * DIM_V; ++i) state[i] = 0;
  run(whole, 0, whole_o);

  double error = 0, norm = 0;
  for (int i = 0; i < TOKENS * HEADS * DIM_V; ++i) {
    error += pow(o[i] - whole_o[i], 2);
    norm += pow(whole_o[i], 2);
  }
  const double relative = sqrt(error / norm);
  printf("%d prompt + %d new tokens: relative difference from one run %.1e\n", PROMPT, NEW,
         relative);

  /* What a mistake looks like. */
  linattn_problem wrong = describe(LINATTN_CHUNK, PROMPT);
  wrong.beta = tensor(3, 1, PROMPT, HEADS + 1, 0);
  linattn_plan_t plan = NULL;
  const int32_t status = linattn_plan(&wrong, cpu, &plan);
  printf("a wrong problem is refused with status %d: %s\n", (int)status, linattn_last_error());

  free_layer(prefill);
  free_layer(decode);
  free_layer(whole);
  return relative < 1e-5 && status == LINATTN_INVALID_VALUE ? 0 : 1;
}
