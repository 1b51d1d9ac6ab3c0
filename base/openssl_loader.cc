#include "base/openssl_loader.h"

#include <dlfcn.h>

#include <string>

#include "base/assert.h"
#include "base/library_function.h"

#define DDPRUN_TEXT_OF(number) #number
#define DDPRUN_SONAME(name, number) name ".so." DDPRUN_TEXT_OF(number)

namespace ddprun {
namespace {

// The libraries of the version whose headers were used for this build.
constexpr const char* kLibcrypto = DDPRUN_SONAME("libcrypto", OPENSSL_SHLIB_VERSION);
constexpr const char* kLibssl = DDPRUN_SONAME("libssl", OPENSSL_SHLIB_VERSION);

struct Loaded {
  OpenSsl table;
  std::string why_not;
};

// Loads the libraries, which stay loaded.
Loaded load() {
  Loaded loaded;
  void* libcrypto = dlopen(kLibcrypto, RTLD_NOW | RTLD_LOCAL);
  void* libssl = libcrypto ? dlopen(kLibssl, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!libssl) {
    const char* why = dlerror();
    loaded.why_not = why ? why : kLibssl;
    return loaded;
  }
  const auto find = [&](void* library, const char* name, auto& function) {
    if (!find_function(library, name, function) && loaded.why_not.empty())
      loaded.why_not = std::string("there is no function ") + name;
  };
#define DDPRUN_FIND(name) find(libcrypto, #name, loaded.table.name);
  DDPRUN_LIBCRYPTO_FUNCTIONS(DDPRUN_FIND)
#undef DDPRUN_FIND
#define DDPRUN_FIND(name) find(libssl, #name, loaded.table.name);
  DDPRUN_LIBSSL_FUNCTIONS(DDPRUN_FIND)
#undef DDPRUN_FIND
  return loaded;
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

Result<void> load_openssl() {
  if (loaded().why_not.empty()) return {};
  return Error{
      .kind = ErrorKind::kUnsupported,
      .doing = "load OpenSSL, for keys and TLS",
      .cause = loaded().why_not + "; install OpenSSL " + DDPRUN_TEXT_OF(OPENSSL_VERSION_MAJOR)};
}

const OpenSsl& openssl() {
  DDPRUN_ASSERT(loaded().why_not.empty(), "load_openssl() was asked first");
  return loaded().table;
}

}  // namespace ddprun
