// The file of init_method file:///PATH. It contains the address of rank 0's store, for ranks
// that share a file system.
//
// It appears complete, by a rename, and contains a random token. Its contents are valid only if
// the store at that address has the same token. So a file of a killed job misleads no rank. No
// function here waits for a change of the file, because NFS does not notify of changes.
//
// Any thread.
#pragma once

#include <optional>
#include <string>

#include "base/host_port.h"
#include "base/result.h"

namespace ddprun {

struct StoreAddress {
  HostPort endpoint;
  std::string token;
};

// Returns the contents of the file; nullopt if it is missing or empty. kCorrupt: the file
// belongs to another program, or is not a regular file (a link, a pipe, a device). It must not
// be changed then.
Result<std::optional<StoreAddress>> read_init_file(const std::string& path);

// PublishedAddress: rank 0's file, which exists as long as the object. One owner thread.
class PublishedAddress {
 public:
  // Writes the file, and replaces an existing one.
  static Result<PublishedAddress> publish(const std::string& path, const StoreAddress& address);
  // Removes the file if it is still this one.
  ~PublishedAddress();
  PublishedAddress(PublishedAddress&& other) noexcept;
  PublishedAddress& operator=(PublishedAddress&& other) = delete;

 private:
  PublishedAddress(std::string path, std::string token)
      : path_(std::move(path)), token_(std::move(token)) {}

  std::string path_;
  std::string token_;  // empty: the object was moved from
};

}  // namespace ddprun
