// hello_of(): what an agent says first, in tests of whoever listens.
#pragma once

#include <string>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun::testing_support {

// Of a node with one worker, whose host is called as its agent is.
inline Hello hello_of(const std::string& job, const std::string& agent, NodeRange nodes = {}) {
  Hello hello;
  hello.job.id = job;
  hello.job.nodes = nodes;
  hello.node.agent_id = agent;
  hello.node.host = agent;
  hello.node.address = "10.0.0.1";
  return hello;
}

}  // namespace ddprun::testing_support
