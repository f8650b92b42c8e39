// Plans, lists and struct layouts as JSON.
#pragma once

#include <string>

#include "recurrence/implementation.h"

namespace linattn {

std::string explain_json(const Plan& plan);
std::string implementations_json();
std::string abi_layout_json();

}  // namespace linattn
