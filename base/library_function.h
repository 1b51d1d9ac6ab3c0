// find_function(): a function of a library that was loaded with dlopen(3). Any thread.
#pragma once

#include <dlfcn.h>

namespace ddprun {

// Whether the library has it. `function`, a pointer to a function of the type that the library's own
// header gives it, is null otherwise.
template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace ddprun
