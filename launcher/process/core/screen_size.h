// ScreenSize: columns and rows of a terminal. A value type; any thread.
#pragma once

namespace ddprun {

struct ScreenSize {
  int columns = 80;
  int rows = 24;
  friend bool operator==(const ScreenSize&, const ScreenSize&) = default;
};

}  // namespace ddprun
