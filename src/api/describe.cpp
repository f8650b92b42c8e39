#include "api/describe.h"

#include <cstddef>

#include "api/json.h"
#include "api/lists.h"

namespace linattn {

std::string explain_json(const Plan& plan) {
  Json json;
  json.open('{').key("implementation");
  if (plan.implementation != nullptr)
    json.string(plan.implementation->name);
  else
    json.null();
  json.key("device").string(plan.facts.name);
  json.key("target").string(plan.facts.target);
  json.key("refused").open('{');
  for (const Refusal& refusal : plan.refused)
    json.key(refusal.implementation).string(refusal.reason);
  json.close('}').key("workspace_bytes").number(plan.workspace_bytes);
  json.key("launches").open('[');
  for (const Launch& launch : plan.launches) {
    json.open('{').key("name").string(launch.name).key("grid").open('[');
    for (const int64_t size : launch.grid) json.number(size);
    json.close(']').key("block").number(launch.block);
    json.key("shared_bytes").number(launch.shared_bytes).key("note").string(launch.note).close('}');
  }
  return json.close(']').close('}').text();
}

std::string implementations_json() {
  Json json;
  json.open('{');
  for (const List list : kLists) {
    json.key(list_name(list)).open('{');
    for (const int32_t type : {LINATTN_DEVICE_CPU, LINATTN_DEVICE_CUDA}) {
      const DeviceFacts facts = device_facts({type, 0});
      json.key(type == LINATTN_DEVICE_CPU ? "cpu" : "cuda").open('[');
      for (const Implementation* entry : implementations(list)) {
        if (entry->device_type != type) continue;
        json.open('{').key("name").string(entry->name);
        json.key("available").boolean(facts.unavailable.empty());
        json.key("reason").string(facts.unavailable).close('}');
      }
      json.close(']');
    }
    json.close('}');
  }
  return json.close('}').text();
}

std::string abi_layout_json() {
  Json json;
  const auto member = [&](const char* name, size_t offset, size_t size) {
    json.key(name).open('[').number(static_cast<int64_t>(offset));
    json.number(static_cast<int64_t>(size)).close(']');
  };
#define LINATTN_STRUCT(type) \
  json.key(#type).open('{').key("size").number(sizeof(type)).key("members").open('{')
#define LINATTN_MEMBER(type, name) member(#name, offsetof(type, name), sizeof(type::name))
  json.open('{');
  LINATTN_STRUCT(linattn_tensor);
  LINATTN_MEMBER(linattn_tensor, type);
  LINATTN_MEMBER(linattn_tensor, rank);
  LINATTN_MEMBER(linattn_tensor, device_type);
  LINATTN_MEMBER(linattn_tensor, device_index);
  LINATTN_MEMBER(linattn_tensor, size);
  LINATTN_MEMBER(linattn_tensor, stride);
  json.close('}').close('}');
  LINATTN_STRUCT(linattn_problem);
#define LINATTN_P(name) LINATTN_MEMBER(linattn_problem, name)
  LINATTN_P(struct_size), LINATTN_P(family), LINATTN_P(form), LINATTN_P(pass), LINATTN_P(gate);
  LINATTN_P(gate_form), LINATTN_P(beta_form), LINATTN_P(flags), LINATTN_P(null_state_index);
  LINATTN_P(state_every), LINATTN_P(force), LINATTN_P(reserved), LINATTN_P(scale);
  LINATTN_P(lower_bound), LINATTN_P(q), LINATTN_P(k), LINATTN_P(v), LINATTN_P(g);
  LINATTN_P(g_gamma), LINATTN_P(beta), LINATTN_P(A_log), LINATTN_P(dt_bias);
  LINATTN_P(initial_state), LINATTN_P(cu_seqlens), LINATTN_P(state_indices);
  LINATTN_P(output_state_indices), LINATTN_P(has_initial_state), LINATTN_P(num_accepted_tokens);
  LINATTN_P(o), LINATTN_P(final_state), LINATTN_P(intermediate_states), LINATTN_P(do_);
  LINATTN_P(dht), LINATTN_P(dq), LINATTN_P(dk), LINATTN_P(dv), LINATTN_P(dg), LINATTN_P(dbeta);
  LINATTN_P(dA_log), LINATTN_P(ddt_bias), LINATTN_P(dh0);
#undef LINATTN_P
  json.close('}').close('}');
  LINATTN_STRUCT(linattn_args);
#define LINATTN_A(name) LINATTN_MEMBER(linattn_args, name)
  LINATTN_A(struct_size), LINATTN_A(reserved), LINATTN_A(workspace), LINATTN_A(q), LINATTN_A(k);
  LINATTN_A(v), LINATTN_A(g), LINATTN_A(g_gamma), LINATTN_A(beta), LINATTN_A(A_log);
  LINATTN_A(dt_bias), LINATTN_A(initial_state), LINATTN_A(cu_seqlens), LINATTN_A(state_indices);
  LINATTN_A(output_state_indices), LINATTN_A(has_initial_state), LINATTN_A(num_accepted_tokens);
  LINATTN_A(o), LINATTN_A(final_state), LINATTN_A(intermediate_states), LINATTN_A(do_);
  LINATTN_A(dht), LINATTN_A(dq), LINATTN_A(dk), LINATTN_A(dv), LINATTN_A(dg), LINATTN_A(dbeta);
  LINATTN_A(dA_log), LINATTN_A(ddt_bias), LINATTN_A(dh0);
#undef LINATTN_A
  json.close('}').close('}');
  LINATTN_STRUCT(linattn_device);
  LINATTN_MEMBER(linattn_device, type);
  LINATTN_MEMBER(linattn_device, index);
  json.close('}').close('}');
#undef LINATTN_STRUCT
#undef LINATTN_MEMBER
  return json.close('}').text();
}

}  // namespace linattn
