// The ordered lists: per pass and form, fastest first, the reference last.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "recurrence/implementation.h"

namespace linattn {

enum class List { chunk_forward, recurrent_forward, backward };
inline constexpr List kLists[] = {List::chunk_forward, List::recurrent_forward, List::backward};

const char* list_name(List list);
List list_of(const Problem& problem);
std::span<const Implementation* const> implementations(List list);

// Identifiers for linattn_problem.force: position + 1 among the distinct names of all lists.
const std::vector<std::string>& implementation_names();
int32_t implementation_id(const std::string& name);  // negative: no such name

DeviceFacts device_facts(linattn_device device);

}  // namespace linattn
