// deliver(): calls an agent's callback for a message of its service. Any thread.
#pragma once

#include "rendezvous/client/service_link.h"

namespace ddprun {

// Calls the callback of the message, if it has one here. The links handle the other messages.
inline void deliver(const ServiceMessage& message, const ServiceLinkEvents& events) {
  if (const auto* answer = std::get_if<Answer>(&message)) events.answer(*answer);
  if (const auto* signal = std::get_if<ForwardSignal>(&message)) events.forward_signal(*signal);
  if (const auto* directive = std::get_if<OutputDirective>(&message))
    events.output_directive(*directive);
  if (const auto* directive = std::get_if<StepsDirective>(&message))
    events.steps_directive(*directive);
  if (const auto directive = directive_of(message)) events.directive(*directive);
}

}  // namespace ddprun
