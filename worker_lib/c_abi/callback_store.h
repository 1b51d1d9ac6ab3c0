// CallbackStore: a Store over a function of the caller (ddprun_cpu_store). It serves to form one
// group, on the thread that forms it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddprun/store.h"
#include "worker_lib/c_abi/cpu.h"

namespace ddprun {

class CallbackStore final : public Store {
 public:
  explicit CallbackStore(ddprun_cpu_store function) : function_(function) {}

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::nanoseconds timeout) override;
  bool check(const std::vector<std::string>& keys) override;
  // Throw kUnsupported: a group uses no counters and deletes no keys.
  std::int64_t add(const std::string& key, std::int64_t delta) override;
  bool delete_key(const std::string& key) override;

 private:
  std::string run(int operation, const std::string& key, const std::string& value,
                  std::chrono::nanoseconds timeout);

  const ddprun_cpu_store function_;
};

}  // namespace ddprun
