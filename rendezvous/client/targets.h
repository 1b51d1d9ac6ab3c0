// Targets: the services that an agent asks, and what they have answered.
//
// A value type; one owner thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/host_port.h"

namespace ddprun {

// Ending: how a connection without a Welcome ended. The worse kinds come last.
struct Ending {
  enum class How { kBroken, kPutOff, kConnectionRefused, kGarbled, kDistrusted, kNoTls, kRefused };
  How how = How::kBroken;
  std::string why = {};
};

// Target: one of the services that are asked.
struct Target {
  HostPort address;
  std::string name;                                            // that its certificate must have
  std::vector<boost::asio::ip::tcp::endpoint> endpoints = {};  // of the last successful look-up
  bool is_asking = false;                                      // a name look-up is running
  bool was_reached = false;                                    // the last try got a connection
  std::optional<Ending> ending = {};                           // of the last contact

  bool has_address() const { return !endpoints.empty(); }
};

class Targets {
 public:
  // Limit of the targets, with those that standbys have named.
  static constexpr std::size_t kMost = 32;

  explicit Targets(std::vector<Target> given) : all_(std::move(given)) {}

  // Adds a target at the end. Returns false if its address is there already, or if there are kMost.
  bool add(Target target);
  // Makes each address of the first target a target of its own, with the same name. A host may have
  // an address of each family, so only the first family counts.
  void spread();
  void keep_first() { all_.resize(1); }

  // Returns what the endings of all targets mean together. The worse ones count only if they are
  // true of all. The text is that of the worst one, because it says most.
  Ending summary() const;

  std::size_t size() const { return all_.size(); }
  Target& operator[](std::size_t index) { return all_[index]; }
  const Target& operator[](std::size_t index) const { return all_[index]; }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<Target> all_;
};

}  // namespace ddprun
