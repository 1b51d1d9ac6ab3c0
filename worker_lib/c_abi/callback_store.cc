#include "worker_lib/c_abi/callback_store.h"

#include <algorithm>

#include "base/error.h"
#include "worker_lib/util/public_error.h"

namespace ddprun {

std::string CallbackStore::run(int operation, const std::string& key, const std::string& value,
                               std::chrono::nanoseconds timeout) {
  std::string answer;
  const int status =
      function_(operation, key.c_str(), value.data(), value.size(), timeout.count(), &answer);
  if (status == DDPRUN_CPU_OK) return answer;
  const bool is_late = status == DDPRUN_CPU_TIMEOUT;
  throw to_dist_error(Error{.kind = is_late ? ErrorKind::kTimeout : ErrorKind::kConnection,
                            .doing = "use the store, key " + key,
                            .cause = answer});
}

void CallbackStore::set(const std::string& key, const std::string& value) {
  run(DDPRUN_CPU_STORE_SET, key, value, {});
}

std::string CallbackStore::get(const std::string& key, std::chrono::nanoseconds timeout) {
  return run(DDPRUN_CPU_STORE_GET, key, {}, timeout);
}

bool CallbackStore::check(const std::vector<std::string>& keys) {
  return std::ranges::all_of(keys, [&](const std::string& key) {
    return run(DDPRUN_CPU_STORE_CHECK, key, {}, {}) == "1";
  });
}

std::int64_t CallbackStore::add(const std::string& key, std::int64_t /*delta*/) {
  throw DistError(DistError::Kind::kUnsupported, "add to key " + key + ": this store cannot");
}

bool CallbackStore::delete_key(const std::string& key) {
  throw DistError(DistError::Kind::kUnsupported, "delete key " + key + ": this store cannot");
}

}  // namespace ddprun
