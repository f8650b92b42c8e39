// What the C boundary itself promises: statuses and texts for null and short structs, sizes of
// texts, errors by thread, the log hook, the walk over the lists.
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "linattn/linattn.h"
#include "problems.h"

namespace {

using linattn::detail::to_c;

bool said(const char* word) { return std::strstr(linattn_last_error(), word) != nullptr; }

void null_and_short_structs() {
  const linattn_problem good = to_c(problems::kda());
  linattn_plan_t plan = nullptr;
  CHECK(linattn_plan(nullptr, linattn::cpu, &plan) == LINATTN_INVALID_VALUE && said("problem"));
  CHECK(linattn_plan(&good, linattn::cpu, nullptr) == LINATTN_INVALID_VALUE && said("plan"));
  CHECK(linattn_run(nullptr, nullptr, nullptr) == LINATTN_INVALID_VALUE && said("plan"));
  linattn_plan_destroy(nullptr);

  for (const uint32_t size : {0u, 4u, 100u, static_cast<uint32_t>(sizeof(good)) - 1, 1u << 30}) {
    linattn_problem wrong = good;
    wrong.struct_size = size;
    CHECK_THAT(
        linattn_plan(&wrong, linattn::cpu, &plan) == LINATTN_INVALID_VALUE && said("struct_size"),
        "size %u: %s", size, linattn_last_error());
  }
  linattn_problem reserved = good;
  reserved.reserved = 1;
  CHECK(linattn_plan(&reserved, linattn::cpu, &plan) == LINATTN_INVALID_VALUE && said("reserved"));
  linattn_problem flags = good;
  flags.flags = 1u << 31;
  CHECK(linattn_plan(&flags, linattn::cpu, &plan) == LINATTN_INVALID_VALUE && said("flags"));
}

// A caller built against a later header has a longer struct: fine while the new members are zero.
void longer_structs() {
  struct Later {
    linattn_problem known;
    int64_t added[4];
  } later{to_c(problems::kda()), {}};
  later.known.struct_size = sizeof(later);
  linattn_plan_t plan = nullptr;
  CHECK(linattn_plan(&later.known, linattn::cpu, &plan) == LINATTN_OK);
  linattn_plan_destroy(plan);
  later.added[2] = 1;
  CHECK(linattn_plan(&later.known, linattn::cpu, &plan) == LINATTN_INVALID_VALUE);
}

void args_are_checked_before_anything_is_written() {
  const linattn::Problem problem = problems::kda();
  linattn::Plan plan(problem);
  std::vector<float> o(problems::B * problems::T * problems::HV * problems::V, 7.0f);
  linattn_args args{};
  CHECK(linattn_run(plan.get(), &args, nullptr) == LINATTN_INVALID_VALUE && said("struct_size"));
  args.struct_size = sizeof(args);
  args.o = o.data();
  CHECK(linattn_run(plan.get(), &args, nullptr) == LINATTN_INVALID_VALUE && said("null"));
  try {
    plan.run({.workspace = linattn::Workspace(plan), .q = std::vector<float>(3)});
    CHECK(false);
  } catch (const linattn::InvalidValue& error) {
    CHECK_THAT(std::string(error.what()).find("q has 12 bytes") != std::string::npos, "%s",
               error.what());
  }
  CHECK(std::all_of(o.begin(), o.end(), [](float value) { return value == 7.0f; }));
}

void texts_tell_their_size() {
  int64_t length = 0;
  CHECK(linattn_implementations(nullptr, 0, &length) == LINATTN_OK && length > 2);
  std::string buffer(static_cast<size_t>(length) + 1, '?');
  int64_t again = 0;
  CHECK(linattn_implementations(buffer.data(), length, &again) == LINATTN_INVALID_VALUE);
  CHECK(again == length && buffer[0] == '?');
  CHECK(linattn_implementations(buffer.data(), length + 1, &again) == LINATTN_OK);
  CHECK(buffer[0] == '{' && buffer[static_cast<size_t>(length)] == '\0');
  CHECK(linattn_implementations(buffer.data(), length + 1, nullptr) == LINATTN_INVALID_VALUE);
  CHECK(linattn_abi_layout(nullptr, 0, &length) == LINATTN_OK && length > 1000);
}

void errors_belong_to_threads() {
  linattn_plan_t plan = nullptr;
  linattn_plan(nullptr, linattn::cpu, &plan);
  const std::string mine = linattn_last_error();
  std::string other = "?";
  std::thread([&] { other = linattn_last_error(); }).join();
  CHECK(!mine.empty());
  CHECK_THAT(other.empty(), "'%s'", other.c_str());
}

void log_hook() {
  std::vector<std::pair<int32_t, std::string>> lines;
  const auto hook = [](int32_t level, const char* message, void* user) {
    static_cast<decltype(lines)*>(user)->emplace_back(level, message);
  };
  CHECK(linattn_set_log(hook, &lines) == LINATTN_OK);
  {
    linattn::Plan plan(problems::kda());
  }
  CHECK(lines.size() == 1 && lines[0].first == 1);
  CHECK(!lines.empty() && lines[0].second.find("kda") != std::string::npos);
  linattn_plan_t none = nullptr;
  linattn_plan(nullptr, linattn::cpu, &none);
  CHECK(lines.size() == 2 && lines.back().first == 2);
  CHECK(linattn_set_log(nullptr, nullptr) == LINATTN_OK);
  {
    linattn::Plan plan(problems::kda());
  }
  CHECK(lines.size() == 2);
}

void the_walk_is_told() {
  linattn::Problem problem = problems::kda();
  problem.force = "reference";
  linattn::Plan forced(problem);
  CHECK(forced.implementation() == "reference");
  const std::string text = linattn::explain(problem);
  CHECK_THAT(text.find("\"implementation\":\"reference\"") != std::string::npos, "%s",
             text.c_str());

  problem.force = "no such thing";
  try {
    linattn::Plan plan(problem);
    CHECK(false);
  } catch (const linattn::InvalidValue& error) {
    CHECK(std::string(error.what()).find("no such thing") != std::string::npos);
  }
  linattn_problem c = to_c(problems::kda());
  c.force = 1000;
  linattn_plan_t plan = nullptr;
  CHECK(linattn_plan(&c, linattn::cpu, &plan) == LINATTN_INVALID_VALUE && said("force is 1000"));
  CHECK(linattn_implementation_id("nothing") < 0);
  CHECK(linattn_implementation_id(nullptr) < 0);
  CHECK(linattn_implementation_id("reference") > 0);
}

// A CUDA problem forced onto the CPU reference: refused with that entry's reason, by a status.
void a_refusal_has_a_reason() {
  linattn::Problem problem = problems::kda();
  for (linattn_tensor* t : {&problem.q, &problem.k, &problem.v, &problem.g, &problem.beta,
                            &problem.initial_state, &problem.o, &problem.final_state})
    t->device_type = LINATTN_DEVICE_CUDA;
  problem.force = "reference";
  try {
    linattn::Plan plan(problem, linattn::cuda(0));
    CHECK(false);
  } catch (const linattn::Unsupported& error) {
    CHECK_THAT(std::string(error.what()).find("reference: ") != std::string::npos, "%s",
               error.what());
  }
  const std::string text = linattn::explain(problem, linattn::cuda(0));
  CHECK_THAT(text.find("\"implementation\":null") != std::string::npos, "%s", text.c_str());
  CHECK_THAT(text.find("\"reference\":\"") != std::string::npos, "%s", text.c_str());
}

void lists_end_with_the_reference() {
  const std::string text = linattn::implementations();
  for (const char* list : {"chunk_forward", "recurrent_forward", "backward"}) {
    const size_t at = text.find('"' + std::string(list) + '"');
    CHECK(at != std::string::npos);
    const std::string cpu = text.substr(at, text.find("\"cuda\"", at) - at);
    const size_t reference = cpu.find("\"reference\"");
    CHECK_THAT(reference != std::string::npos, "%s", cpu.c_str());
    CHECK_THAT(cpu.find("\"name\"", reference) == std::string::npos, "%s", cpu.c_str());
  }
}

void small_answers() {
  const std::string version = std::to_string(LINATTN_VERSION_MAJOR) + "." +
                              std::to_string(LINATTN_VERSION_MINOR) + "." +
                              std::to_string(LINATTN_VERSION_PATCH);
  CHECK(linattn_version() == version);
  CHECK(std::strlen(linattn_build_info()) > 0);
  CHECK(linattn_intermediate_rows_bound(128, 3, 0) == 5);
  CHECK(linattn_set_num_threads(-1) == LINATTN_INVALID_VALUE && said("-1"));
  const int32_t before = linattn_get_num_threads();
  CHECK(linattn_set_num_threads(2) == LINATTN_OK && linattn_get_num_threads() == 2);
  CHECK(linattn_set_num_threads(0) == LINATTN_OK && linattn_get_num_threads() == before);
}

}  // namespace

int main() {
  null_and_short_structs();
  longer_structs();
  args_are_checked_before_anything_is_written();
  texts_tell_their_size();
  errors_belong_to_threads();
  log_hook();
  the_walk_is_told();
  a_refusal_has_a_reason();
  lists_end_with_the_reference();
  small_answers();
  return check::finish();
}
