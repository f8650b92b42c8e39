// Log hook: the library itself never prints unless asked to at load.
#pragma once

#include <string>

#include "linattn/linattn.h"

namespace linattn {

enum class LogLevel { plan = 1, failure = 2 };

void log(LogLevel level, const std::string& message);
bool logging();  // false: nobody listens, the message need not be built
void set_log(linattn_log_function function, void* user);

}  // namespace linattn
