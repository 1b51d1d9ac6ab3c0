// find_function(): finds a function of a library that was loaded with dlopen(3). Any thread.
#pragma once

#include <dlfcn.h>

namespace ddprun {

// Returns whether the library has the function, and stores it in `function`, or null. The type
// of `function` is a pointer to the function as the library's own header declares it.
template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace ddprun
