// side_by_side(): runs functions that have to wait, all at the same time. Any thread.
#pragma once

#include <functional>
#include <vector>

namespace ddprun {

// Runs each body in a thread of its own, or in this thread if no thread can be started. Returns
// when all have ended. A body must not throw, and must not write where another one does.
void side_by_side(std::vector<std::function<void()>> bodies);

// Adds a body for each one of `asked`, which puts look(one) into `answers`, in the same order.
// REQUIRES: `asked` and `answers` stay unchanged until the bodies have run.
template <class Asked, class Look, class Answer>
void look_at_each(const Asked& asked, Look look, std::vector<Answer>& answers,
                  std::vector<std::function<void()>>& bodies) {
  answers.resize(asked.size());
  auto place = answers.begin();
  for (const auto& one : asked) {
    bodies.push_back([look, &one, &answer = *place++] { answer = look(one); });
  }
}

}  // namespace ddprun
