// What the environment asks for, read when the library is loaded and never later.
#pragma once

#include "core/status.h"

namespace linattn {

// For the initialisers of other files: each call reads the environment anew.
int threads_in_environment();  // LINATTN_NUM_THREADS; 0 where it asks for none
bool verbose_in_environment();

// Names a variable that was set to something it cannot take. There is nobody to tell at load, so
// the first plan fails with it.
Status check_environment();

}  // namespace linattn
