// The C interface: checks what only the boundary can check, turns exceptions of the standard
// library (allocation of plans and texts) into statuses.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "api/describe.h"
#include "api/json.h"
#include "api/lists.h"
#include "api/planner.h"
#include "core/log.h"
#include "core/thread_pool.h"
#include "linattn/linattn.h"

#define LINATTN_TEXT_(x) #x
#define LINATTN_TEXT(x) LINATTN_TEXT_(x)

struct linattn_plan_s {
  linattn::Plan plan;
};

namespace linattn {
namespace {

template <class F>
int32_t guarded(F&& body) {
  Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    return LINATTN_OUT_OF_MEMORY;  // no text: that would allocate
  } catch (...) {
    return LINATTN_OUT_OF_MEMORY;
  }
  if (status != LINATTN_OK && logging()) {
    try {
      log(LogLevel::failure, last_error());
    } catch (...) {
    }
  }
  return status;
}

// Older callers have shorter structs, whose missing members are zero; newer ones have longer
// structs, whose unknown members must be zero.
template <class T>
Status read_struct(const T* asked, size_t oldest, const char* name, T* known) {
  LINATTN_REQUIRE(asked != nullptr, LINATTN_INVALID_VALUE, "%s is null", name);
  const uint32_t size = asked->struct_size;
  constexpr uint32_t kLongest = 1 << 16;
  LINATTN_REQUIRE(size >= oldest && size <= kLongest, LINATTN_INVALID_VALUE,
                  "%s->struct_size is %u; allowed: %zu to %u", name, size, oldest, kLongest);
  *known = T{};
  std::memcpy(known, asked, std::min<size_t>(size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(asked);
  for (size_t at = sizeof(T); at < size; ++at)
    LINATTN_REQUIRE(bytes[at] == 0, LINATTN_INVALID_VALUE,
                    "%s sets a member at byte %zu that this version does not know", name, at);
  return LINATTN_OK;
}

constexpr size_t kOldestProblem = offsetof(linattn_problem, dh0) + sizeof(linattn_tensor);
constexpr size_t kOldestArgs = offsetof(linattn_args, dh0) + sizeof(void*);

}  // namespace
}  // namespace linattn

using namespace linattn;

extern "C" {

const char* linattn_version(void) {
  return LINATTN_TEXT(LINATTN_VERSION_MAJOR) "." LINATTN_TEXT(
      LINATTN_VERSION_MINOR) "." LINATTN_TEXT(LINATTN_VERSION_PATCH);
}

const char* linattn_build_info(void) { return LINATTN_BUILD_INFO; }

const char* linattn_last_error(void) { return last_error().c_str(); }

int32_t linattn_plan(const linattn_problem* problem, linattn_device device, linattn_plan_t* plan) {
  return guarded([&]() -> Status {
    LINATTN_REQUIRE(plan != nullptr, LINATTN_INVALID_VALUE, "plan is null; it gets the plan");
    linattn_problem asked;
    LINATTN_RETURN_IF_FAILED(read_struct(problem, kOldestProblem, "problem", &asked));
    auto made = std::make_unique<linattn_plan_s>();
    LINATTN_RETURN_IF_FAILED(make_plan(asked, device, &made->plan));
    *plan = made.release();
    return LINATTN_OK;
  });
}

void linattn_plan_destroy(linattn_plan_t plan) { delete plan; }

int64_t linattn_plan_workspace_bytes(linattn_plan_t plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes;
}

const char* linattn_plan_implementation(linattn_plan_t plan) {
  return plan == nullptr ? "" : plan->plan.implementation->name;
}

int32_t linattn_run(linattn_plan_t plan, const linattn_args* args, void* stream) {
  return guarded([&]() -> Status {
    LINATTN_REQUIRE(plan != nullptr, LINATTN_INVALID_VALUE, "plan is null");
    linattn_args asked;
    LINATTN_RETURN_IF_FAILED(read_struct(args, kOldestArgs, "args", &asked));
    return run_plan(plan->plan, asked, stream);
  });
}

int32_t linattn_explain(const linattn_problem* problem, linattn_device device, char* buffer,
                        int64_t capacity, int64_t* length) {
  return guarded([&]() -> Status {
    linattn_problem asked;
    LINATTN_RETURN_IF_FAILED(read_struct(problem, kOldestProblem, "problem", &asked));
    Plan plan;
    const Status status = make_plan(asked, device, &plan);
    if (status != LINATTN_OK && status != LINATTN_UNSUPPORTED) return status;
    return copy_text(explain_json(plan), buffer, capacity, length);
  });
}

int32_t linattn_implementations(char* buffer, int64_t capacity, int64_t* length) {
  return guarded([&] { return copy_text(implementations_json(), buffer, capacity, length); });
}

int32_t linattn_implementation_id(const char* name) {
  int32_t id = -1;
  const int32_t status = guarded([&]() -> Status {
    LINATTN_REQUIRE(name != nullptr, LINATTN_INVALID_VALUE, "name is null");
    id = implementation_id(name);
    return LINATTN_OK;
  });
  return status == LINATTN_OK ? id : -1;
}

int64_t linattn_intermediate_rows_bound(int64_t num_tokens, int64_t num_sequences,
                                        int64_t state_every) {
  return num_tokens / (state_every > 0 ? state_every : 64) + num_sequences;
}

int32_t linattn_set_num_threads(int32_t count) {
  return guarded([&]() -> Status {
    LINATTN_REQUIRE(count >= 0 && count <= 1024, LINATTN_INVALID_VALUE,
                    "num_threads is %d; allowed: 0 (default) to 1024", count);
    set_num_threads(count);
    return LINATTN_OK;
  });
}

int32_t linattn_get_num_threads(void) { return num_threads(); }

int32_t linattn_set_debug_checks(int32_t enabled) {
  set_debug_checks(enabled != 0);
  return LINATTN_OK;
}

int32_t linattn_set_log(linattn_log_function function, void* user) {
  return guarded([&] {
    set_log(function, user);
    return LINATTN_OK;
  });
}

int32_t linattn_abi_layout(char* buffer, int64_t capacity, int64_t* length) {
  return guarded([&] { return copy_text(abi_layout_json(), buffer, capacity, length); });
}

}  // extern "C"
