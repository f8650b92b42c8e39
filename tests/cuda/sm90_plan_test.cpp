// What the Hopper chunk kernels take, refuse and plan, asked of a card that need not be there.
#include <initializer_list>
#include <iterator>
#include <string>

#include "check.h"
#include "cuda/cuda.h"

namespace {

using linattn::cuda::chunk_forward_sm90;

constexpr int64_t kTokens = 8192, kHeads = 2, kHeadsV = 8;

linattn_tensor tensor(int32_t type, std::initializer_list<int64_t> size) {
  linattn_tensor t{};
  t.type = type;
  t.rank = static_cast<int32_t>(size.size());
  t.device_type = LINATTN_DEVICE_CUDA;
  int64_t stride = 1;
  size_t axis = size.size();
  for (auto it = std::rbegin(size); it != std::rend(size); ++it) {
    t.size[--axis] = *it;
    t.stride[axis] = stride;
    stride *= *it;
  }
  return t;
}

linattn_problem gdn(int64_t batch = 1, int32_t type = LINATTN_BF16) {
  linattn_problem p{};
  p.struct_size = sizeof(p);
  p.family = LINATTN_GDN;
  p.form = LINATTN_CHUNK;
  p.pass = LINATTN_FORWARD;
  p.gate = LINATTN_GATE_HEAD;
  p.flags = LINATTN_FLAG_QK_NORM;
  p.scale = 1.0;
  p.q = p.k = tensor(type, {batch, kTokens, kHeads, 128});
  p.v = p.o = tensor(type, {batch, kTokens, kHeadsV, 128});
  p.g = p.beta = tensor(LINATTN_F32, {batch, kTokens, kHeadsV});
  return p;
}

linattn::DeviceFacts facts(int capability = 90) {
  linattn::DeviceFacts facts;
  facts.device = {LINATTN_DEVICE_CUDA, 0};
  facts.name = "cuda:0 (a card)";
  facts.compute_capability = capability;
  facts.num_sms = 132;
  facts.shared_bytes_block = 227 * 1024;
  return facts;
}

linattn::Problem checked(const linattn_problem& asked) {
  linattn::Problem problem;
  CHECK(linattn::validate(asked, {LINATTN_DEVICE_CUDA, 0}, &problem) == LINATTN_OK);
  return problem;
}

void refused(const linattn_problem& asked, const char* word, int capability = 90) {
  const std::string reason = chunk_forward_sm90.reject(checked(asked), facts(capability));
  CHECK_THAT(reason.find(word) != std::string::npos, "no '%s' in '%s'", word, reason.c_str());
}

void refusals() {
  CHECK(chunk_forward_sm90.reject(checked(gdn()), facts()).empty());
  CHECK(chunk_forward_sm90.reject(checked(gdn(1, LINATTN_F16)), facts()).empty());
  refused(gdn(), "9.0", 80);
  refused(gdn(), "10.0", 100);
  refused(gdn(1, LINATTN_F32), "float32");
  linattn_problem p = gdn();
  p.q = p.k = tensor(LINATTN_BF16, {1, kTokens, kHeads, 64});
  refused(p, "K = 64");
  p = gdn();
  p.gate = LINATTN_GATE_CHANNEL;
  p.g = tensor(LINATTN_F32, {1, kTokens, kHeadsV, 128});
  CHECK(chunk_forward_sm90.reject(checked(p), facts()).empty());
  p.q = p.k = tensor(LINATTN_F16, {1, kTokens, kHeads, 128});
  p.v = p.o = tensor(LINATTN_F16, {1, kTokens, kHeadsV, 128});
  refused(p, "q is float16");
  p = gdn();
  p.v.stride[3] = 2, p.v.stride[2] = 256, p.v.stride[1] = 256 * kHeadsV;
  p.v.stride[0] = p.v.stride[1] * kTokens;
  refused(p, "v has stride 2");
  // Keys that nobody here has normalised, with any beta.
  p = gdn();
  p.flags = 0;
  CHECK(chunk_forward_sm90.reject(checked(p), facts()).empty());
}

linattn::Plan planned(const linattn_problem& asked) {
  linattn::Plan plan;
  plan.problem = checked(asked);
  plan.facts = facts();
  chunk_forward_sm90.plan(&plan);
  CHECK(plan.workspace_bytes > 0);
  CHECK(plan.launches.back().name == "chunk_scan_sm90");
  return plan;
}

// Chunks of a piece; 0 where sequences stay whole, a CTA for each head of a sequence.
int64_t piece(const linattn_problem& asked) {
  const linattn::Plan plan = planned(asked);
  const size_t kernels = plan.launches.size();
  const bool cuts = kernels > 2 && plan.launches[kernels - 2].name == "chunk_cut_sm90";
  if (!cuts) CHECK(plan.launches.back().grid[0] == plan.problem.num_sequences * kHeadsV);
  if (cuts) CHECK(plan.launches.back().grid[0] > plan.problem.num_sequences * kHeadsV);
  CHECK(cuts == (plan.config[0] > 0));
  return plan.config[0];
}

// Pieces where the chains alone leave SMs idle.
void pieces() {
  CHECK_THAT(piece(gdn()) == 32, "%lld", static_cast<long long>(piece(gdn())));
  linattn_problem p = gdn();
  p.flags |= LINATTN_FLAG_NO_AUTO_CP;
  CHECK(piece(p) == 0);
  // Maps for every segment are three times the work: fewer pieces, and none for many chains.
  p = gdn();
  p.family = LINATTN_DELTA;
  p.gate = LINATTN_GATE_NONE;
  p.g = {};
  CHECK_THAT(piece(p) == 42, "%lld", static_cast<long long>(piece(p)));
  CHECK(piece(gdn(4)) == 64);
  CHECK(piece(gdn(16)) == 0);
  // Cuts of a sequence's own: the same however many are in the batch.
  for (const int64_t batch : {1, 3, 40}) {
    p = gdn(batch);
    p.flags |= LINATTN_FLAG_BATCH_INVARIANT;
    CHECK(piece(p) == 64);
  }
  // States and maps take what segments there are at most: 8 pieces of two, 64 + 64 KB a head.
  const int64_t whole = [] {
    linattn_problem p = gdn();
    p.flags |= LINATTN_FLAG_NO_AUTO_CP;
    return planned(p).workspace_bytes;
  }();
  const int64_t extra = planned(gdn()).workspace_bytes - whole;
  CHECK_THAT(extra > 16 * kHeadsV << 17 && extra < 17 * kHeadsV << 17, "%lld",
             static_cast<long long>(extra));
}

}  // namespace

int main() {
  refusals();
  pieces();
  return check::finish();
}
