#include "launcher/output/core/console_look.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace ddprun {
namespace {

ConsoleFacts terminal() {
  return {.out = ScreenSize{}, .err = ScreenSize{}, .one_terminal = true, .term = "xterm"};
}

TEST(ConsoleLook, ATerminalIsColouredAndHasAStatusLine) {
  EXPECT_TRUE(look_of(terminal()).coloured);
  EXPECT_TRUE(look_of(terminal()).live);
}

TEST(ConsoleLook, WhatIsNoTerminalOrNotWantedIsPlain) {
  for (const auto& spoil : std::vector<std::function<void(ConsoleFacts&)>>{
           [](ConsoleFacts& facts) { facts.out.reset(); },
           [](ConsoleFacts& facts) { facts.err.reset(); },
           [](ConsoleFacts& facts) { facts.one_terminal = false; },
           [](ConsoleFacts& facts) { facts.term = ""; },
           [](ConsoleFacts& facts) { facts.term = "dumb"; },
           [](ConsoleFacts& facts) { facts.no_color = "1"; },
           [](ConsoleFacts& facts) { facts.has_json = true; }}) {
    ConsoleFacts facts = terminal();
    spoil(facts);
    EXPECT_FALSE(look_of(facts).coloured);
    EXPECT_FALSE(look_of(facts).live);
  }
}

TEST(ConsoleLook, WhereAPersonTypesNothingIsDrawnBelow) {
  ConsoleFacts facts = terminal();
  facts.is_typed_into = true;
  EXPECT_TRUE(look_of(facts).coloured);
  EXPECT_FALSE(look_of(facts).live);
}

}  // namespace
}  // namespace ddprun
