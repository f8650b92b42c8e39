// chunk_forward on Hopper: index (varlen), preparation, scan.
#include <cuda_runtime_api.h>

#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/portable/chunk.kernels.h"
#include "cuda/sm90/kernels.h"
#include "cuda/sm90/scan.plan.h"
#include "cuda/tile/tensor_map.h"

namespace linattn::cuda {
namespace {

using sm90::Cut;
using sm90::Kernel;
using sm90::ScanParams;

const char* prepare_name(const Problem& p) {
  return p.gate == Gate::channel ? "chunk_prepare_channel_sm90" : "chunk_prepare_sm90";
}

Kernel prepare_kernel_for(const Problem& p) {
  if (p.gate == Gate::channel)
    return sm90::prepare_channel_kernel_of(p.update == Update::delta, sm90::anchored_gates(p));
  return sm90::prepare_kernel_of(p.q.type == Type::bf16, p.update == Update::delta,
                                 sm90::prepare_warps(p));
}

Kernel cut_kernel_for(const Problem& p) { return sm90::cut_kernel_of(p.update == Update::delta); }

Kernel scan_kernel_for(const Problem& p) {
  return sm90::scan_kernel_of(p.q.type == Type::bf16, p.update == Update::delta,
                              p.gate == Gate::channel);
}

void plan(Plan* plan) {
  const Problem& p = plan->problem;
  const Cut cut = sm90::cut_of(p, plan->facts);
  plan->workspace_bytes = sm90::workspace_bytes(p, cut);
  plan->config[0] = cut.piece, plan->config[1] = cut.joined;
  const Kernel prepare = prepare_kernel_for(p), scan = scan_kernel_for(p);
  const Kernel cuts = cut_kernel_for(p);
  if (p.varlen()) plan->launches.push_back({"chunk_index_portable", {1, 1, 1}, 1024});
  plan->launches.push_back({prepare_name(p),
                            {sm90::prepare_grid(p), 1, 1},
                            prepare.threads,
                            prepare.shared_bytes,
                            "records of 32 tokens"});
  if (cut.piece > 0)
    plan->launches.push_back({"chunk_cut_sm90",
                              {sm90::cut_grid(p, cut), 1, 1},
                              cuts.threads,
                              cuts.shared_bytes,
                              "lists the work of the next kernel on the device"});
  plan->launches.push_back({"chunk_scan_sm90",
                            {sm90::scan_grid(p, cut), 1, 1},
                            scan.threads,
                            scan.shared_bytes,
                            sm90::describe(p, cut)});
  const int device = plan->facts.device.index;
  if (p.varlen()) prepare_kernel(chunk_index_kernel().address, 0, device);
  for (const Kernel& kernel : {prepare, cuts, scan})
    prepare_kernel(kernel.address, kernel.shared_bytes, device);
}

bool map_rows(const Problem& p, const TokenView& view, const void* data, int64_t heads,
              CUtensorMap* map) {
  return tile::make_tensor_map({data, view.type == Type::bf16, p.batch, p.num_tokens, heads,
                                sm90::kDim, view.b, view.t, view.h, kChunk},
                               map);
}

// Numbers of 32 bits as pairs of 16.
bool map_gates(const Problem& p, const void* data, CUtensorMap* map) {
  const TokenView& g = p.g;
  const int64_t words = size_of(g.type) / 2;
  return tile::make_tensor_map({data, true, p.batch, p.num_tokens, p.heads_v, sm90::kDim * words,
                                g.b * words, g.t * words, g.h * words, kChunk},
                               map);
}

Status run(const Plan& plan, const linattn_args& args, void* stream) {
  const Problem& p = plan.problem;
  const int device = plan.facts.device.index;
  const Cut cut{plan.config[0], plan.config[1] != 0};
  ScanParams params = sm90::scan_params(p, cut, args);
  params.vectors = params.vectors && map_rows(p, p.q, args.q, p.heads_qk, &params.q_map) &&
                   map_rows(p, p.k, args.k, p.heads_qk, &params.k_map) &&
                   map_rows(p, p.v, args.v, p.heads_v, &params.v_map) &&
                   (p.gate != Gate::channel || map_gates(p, args.g, &params.g_map));
  if (p.varlen()) {
    ChunkParams index;
    index.problem = p;
    index.args = args;
    index.chunk_begin = params.chunk_begin;
    LINATTN_RETURN_IF_FAILED(launch({"chunk_index_portable", 1, 1024, false},
                                    chunk_index_kernel().address, &index, device, stream));
  }
  const Kernel prepare = prepare_kernel_for(p), scan = scan_kernel_for(p);
  const int64_t preparations = sm90::prepare_grid(p), chains = sm90::scan_grid(p, cut);
  if (preparations > 0)
    LINATTN_RETURN_IF_FAILED(
        launch({prepare_name(p), preparations, prepare.threads, false, prepare.shared_bytes},
               prepare.address, &params, device, stream));
  if (cut.piece > 0) {
    const Kernel cuts = cut_kernel_for(p);
    LINATTN_RETURN_IF_FAILED(launch({"chunk_cut_sm90", sm90::cut_grid(p, cut), cuts.threads, true},
                                    cuts.address, &params, device, stream));
  }
  if (chains == 0) return LINATTN_OK;
  return launch({"chunk_scan_sm90", chains, scan.threads, preparations > 0, scan.shared_bytes},
                scan.address, &params, device, stream);
}

}  // namespace

const Implementation chunk_forward_sm90{"cuda_sm90", LINATTN_DEVICE_CUDA, sm90::reject, plan, run};

}  // namespace linattn::cuda
