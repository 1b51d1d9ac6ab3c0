// hello_of(): the first message of an agent, for tests of code that receives it.
#pragma once

#include <string>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun::testing_support {

// Returns the Hello of a node with one worker. The host's name is the agent's id.
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
