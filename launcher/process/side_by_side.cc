#include "launcher/process/side_by_side.h"

#include <thread>

#include "base/background_thread.h"

namespace ddprun {

void side_by_side(std::vector<std::function<void()>> bodies) {
  std::vector<std::thread> threads(bodies.size());
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    if (!start_thread(threads[i], "side-by-side", bodies[i])) bodies[i]();
  }
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace ddprun
