// The basis for tests of doctor's checks: facts of a healthy host, and functions that return
// what a check finds in given facts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "launcher/doctor/core/doctor.h"

namespace ddprun::testing_support {

inline constexpr std::uint64_t kMiB = 1024 * 1024;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

inline DoctorFacts healthy_facts() {
  using std::chrono::milliseconds;
  DoctorFacts facts{.version = "1.2.3", .host = "node0"};
  facts.names.own = {.asked = "node0",
                     .outcome = LookUp::Outcome::kFound,
                     .took = milliseconds(1),
                     .found = {"10.0.0.1"}};
  facts.names.own_is_here = true;
  facts.names.servers = {{.address = "10.0.0.53", .took = milliseconds(1)},
                         {.address = "10.0.1.53", .took = milliseconds(2)}};
  facts.names.of_addresses = {{.asked = "::ffff:127.0.0.1", .took = milliseconds(1)}};
  facts.network.interfaces = {{"eth0", "10.0.0.1"}};
  facts.network.interface_names = {"lo", "eth0", "ib0"};
  facts.network.ephemeral = PortRange{32768, 60999};
  facts.shared_memory.space = {.path = "/dev/shm", .total = 16 * kGiB, .available = 16 * kGiB};
  facts.temporary = {.path = "/tmp", .total = 64 * kGiB, .available = 32 * kGiB};
  facts.limits.open_files = {65536, 65536};
  facts.cgroup = {.path = "/sys/fs/cgroup/a", .can_make_children = true, .controllers = {"memory"}};
  facts.machine = {
      .usable_cores = 8, .online_cores = 8, .memory = 64 * kGiB, .memory_available = 60 * kGiB};
  facts.clock = {.synchronised = true, .source = "tsc"};
  facts.debuggers.has_gdb = true;
  facts.debuggers.has_py_spy = true;
  return facts;
}

// Returns healthy facts with an endpoint on another host. A service of the same version answers
// there.
inline DoctorFacts facts_with_endpoint() {
  using std::chrono::milliseconds;
  DoctorFacts facts = healthy_facts();
  facts.job.several_nodes = true;
  EndpointFacts endpoint{.option = "--rdzv-endpoint", .address = {"node1", 29400}};
  endpoint.look_up = {.asked = "node1",
                      .outcome = LookUp::Outcome::kFound,
                      .took = milliseconds(1),
                      .found = {"10.0.0.2"}};
  endpoint.tries = {{.address = "10.0.0.2",
                     .outcome = ConnectTry::Outcome::kConnected,
                     .took = milliseconds(1),
                     .source = "10.0.0.1"}};
  endpoint.service = ServiceAnswer{.outcome = ServiceAnswer::Outcome::kService,
                                   .took = milliseconds(2),
                                   .version = "1.2.3",
                                   .host = "node1",
                                   .clock_ahead = milliseconds(3)};
  facts.network.endpoint = endpoint;
  return facts;
}

// Returns the finding of this check. If the check does not apply, returns one with level kOk and
// without texts.
inline Finding finding_of(const DoctorFacts& facts, std::string_view id) {
  for (const Finding& one : diagnose(facts)) {
    if (one.id == id) return one;
  }
  return {};
}

inline Level level_of(const DoctorFacts& facts, std::string_view id) {
  return finding_of(facts, id).level;
}

}  // namespace ddprun::testing_support
