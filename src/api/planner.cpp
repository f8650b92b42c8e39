#include "api/planner.h"

#include <atomic>
#include <cstdlib>

#include "api/lists.h"
#include "api/run_checks.h"
#include "core/environment.h"
#include "core/ledger.h"
#include "core/log.h"
#include "recurrence/families.h"
#ifdef LINATTN_WITH_CUDA
#include "cuda/host_copies.h"
#endif

namespace linattn {
namespace {

// The environment is read when the library is loaded, never later.
const std::string forced_at_load = [] {
  const char* text = std::getenv("LINATTN_FORCE");
  return std::string(text == nullptr ? "" : text);
}();

std::string known_names() {
  std::string text;
  for (const std::string& name : implementation_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string describe(const Plan& plan) {
  const Problem& p = plan.problem;
  return format_text("%s %s on %s, B=%lld T=%lld N=%lld H=%lld HV=%lld K=%lld V=%lld",
                     find_family(static_cast<int32_t>(p.family))->name, list_name(list_of(p)),
                     plan.facts.name.c_str(), static_cast<long long>(p.batch),
                     static_cast<long long>(p.num_tokens), static_cast<long long>(p.num_sequences),
                     static_cast<long long>(p.heads_qk), static_cast<long long>(p.heads_v),
                     static_cast<long long>(p.dim_k), static_cast<long long>(p.dim_v));
}

Status forced_name(const Problem& p, std::string* name) {
  *name = forced_at_load;
  if (!name->empty() && implementation_id(*name) < 0)
    return fail(LINATTN_INVALID_VALUE,
                "LINATTN_FORCE is '%s', which is no implementation of this build; allowed: %s",
                name->c_str(), known_names().c_str());
  if (p.force == 0) return LINATTN_OK;
  const auto& names = implementation_names();
  LINATTN_REQUIRE(p.force >= 1 && p.force <= static_cast<int32_t>(names.size()),
                  LINATTN_INVALID_VALUE, "force is %d; allowed: 0, or 1 to %zu (%s)", p.force,
                  names.size(), known_names().c_str());
  *name = names[static_cast<size_t>(p.force) - 1];
  return LINATTN_OK;
}

std::string reason_to_refuse(const Implementation& entry, const Plan& plan) {
  const DeviceFacts& facts = plan.facts;
  if (entry.device_type != facts.device.type)
    return format_text("runs on %s, the tensors are on %s",
                       entry.device_type == LINATTN_DEVICE_CPU ? "cpu" : "cuda",
                       facts.name.c_str());
  if (!facts.unavailable.empty()) return facts.unavailable;
  return entry.reject(plan.problem, facts);
}

// Scratch may start anywhere in the caller's buffer: room to align it is part of the size.
constexpr int64_t kAlignmentRoom = Ledger::kAlignment - 1;

Status walk(Plan* plan) {
  LINATTN_RETURN_IF_FAILED(check_environment());
  std::string forced;
  LINATTN_RETURN_IF_FAILED(forced_name(plan->problem, &forced));
  for (const Implementation* entry : implementations(list_of(plan->problem))) {
    std::string reason = reason_to_refuse(*entry, *plan);
    if (reason.empty() && !forced.empty() && forced != entry->name)
      reason = "'" + forced + "' is forced";
    if (!reason.empty()) {
      plan->refused.push_back({entry->name, std::move(reason)});
      continue;
    }
    plan->implementation = entry;
    entry->plan(plan);
    if (plan->workspace_bytes > 0) plan->workspace_bytes += kAlignmentRoom;
    return LINATTN_OK;
  }
  std::string reasons;
  for (const Refusal& refusal : plan->refused)
    reasons += "\n  " + refusal.implementation + ": " + refusal.reason;
  if (reasons.empty()) reasons = " " + plan->facts.unavailable;
  return fail(LINATTN_UNSUPPORTED, "no implementation takes %s:%s", describe(*plan).c_str(),
              reasons.c_str());
}

std::atomic<bool> debug_checks{false};

// What the CPU reads anyway is always checked there; of a device only where debug checks are on.
Status check_data(const Plan& plan, const linattn_args& args, void* stream) {
  if (plan.facts.device.type == LINATTN_DEVICE_CPU)
    return check_device_data(plan.problem, args, debug_checks);
#ifdef LINATTN_WITH_CUDA
  if (debug_checks) {
    cuda::HostCopies copies;
    LINATTN_RETURN_IF_FAILED(copies.fetch(plan.problem, args, plan.facts.device.index, stream));
    return check_device_data(plan.problem, copies.args(), true);
  }
#endif
  (void)stream;
  return LINATTN_OK;
}

}  // namespace

void set_debug_checks(bool enabled) { debug_checks = enabled; }

Status make_plan(const linattn_problem& asked, linattn_device device, Plan* plan) {
  LINATTN_RETURN_IF_FAILED(validate(asked, device, &plan->problem));
  plan->facts = device_facts(device);
  LINATTN_RETURN_IF_FAILED(walk(plan));
  if (logging()) {
    std::string text = describe(*plan) + ": " + plan->implementation->name;
    for (const Refusal& refusal : plan->refused)
      text += "; not " + refusal.implementation + ": " + refusal.reason;
    log(LogLevel::plan, text);
  }
  return LINATTN_OK;
}

Status run_plan(const Plan& plan, const linattn_args& asked, void* stream) {
  linattn_args args = asked;
  LINATTN_RETURN_IF_FAILED(check_pointers(plan.problem, args));
  LINATTN_REQUIRE(plan.workspace_bytes == 0 || args.workspace != nullptr, LINATTN_INVALID_VALUE,
                  "workspace is null; this plan needs %lld bytes",
                  static_cast<long long>(plan.workspace_bytes));
  LINATTN_RETURN_IF_FAILED(check_data(plan, args, stream));
  const uintptr_t address = reinterpret_cast<uintptr_t>(args.workspace);
  args.workspace =
      reinterpret_cast<void*>((address + kAlignmentRoom) / Ledger::kAlignment * Ledger::kAlignment);
  return plan.implementation->run(plan, args, stream);
}

}  // namespace linattn
