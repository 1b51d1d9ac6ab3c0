// Sha256Beside: SHA-256 of large pieces on a thread of its own, while the caller does something else with
// them (writes them). On a disk of 1 GB/s the digest, at about as much, would otherwise double the time.
//
//   beside.begin(data, bytes);
//   write(fd, data, bytes);
//   beside.join();  // data may change from now on
//
// One owner thread. The thread is started by the first begin() and ends with the object; where none can be
// started, begin() does the work.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>

#include "worker_lib/sha256.h"

namespace ddprun {

class Sha256Beside {
 public:
  // digest: outlives this; not to be used between begin() and join().
  explicit Sha256Beside(Sha256& digest) : digest_(digest) {}
  ~Sha256Beside();
  Sha256Beside(const Sha256Beside&) = delete;
  Sha256Beside& operator=(const Sha256Beside&) = delete;

  // Adds the piece to the digest; it must stay as it is until join().
  void begin(const void* data, std::size_t bytes);
  void join();

 private:
  void run();

  Sha256& digest_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string_view piece_;  // empty: nothing is being added
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ddprun
