// The file of init_method file:///PATH: where rank 0's store is, for ranks that see the same file
// system.
//
// It appears as a whole, by a rename, and holds a random token: what it says counts only where the
// store that it names knows this token, too. So a file that a killed job has left leads nobody
// astray. Nothing here waits for a change: on NFS nobody would tell.
//
// Any thread.
#pragma once

#include <optional>
#include <string>

#include "base/host_port.h"
#include "base/result.h"

namespace ddprun {

struct StoreAddress {
  HostPort address;
  std::string token;
};

// What the file says; nothing where it is missing or empty. kCorrupt: somebody else's file, or none
// (a link, a pipe, a device), which must not be touched.
Result<std::optional<StoreAddress>> read_init_file(const std::string& path);

// Rank 0's file, as long as the object lives. One owner thread.
class PublishedAddress {
 public:
  // Replaces what is there.
  static Result<PublishedAddress> publish(const std::string& path, const StoreAddress& note);
  // Removes the file, if it still is this one.
  ~PublishedAddress();
  PublishedAddress(PublishedAddress&& other) noexcept;
  PublishedAddress& operator=(PublishedAddress&& other) = delete;

 private:
  PublishedAddress(std::string path, std::string token)
      : path_(std::move(path)), token_(std::move(token)) {}

  std::string path_;
  std::string token_;  // empty: moved away
};

}  // namespace ddprun
