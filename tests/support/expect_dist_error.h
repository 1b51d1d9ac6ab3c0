// Statements that throw a DistError.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/error.h"

namespace ddprun::testing_support {

// What the action throws; fails the test where it throws nothing. Exceptions of other types pass.
template <class Action>
DistError dist_error_of(const Action& action, const char* name = "it") {
  try {
    action();
  } catch (const DistError& thrown) {
    return thrown;
  }
  ADD_FAILURE() << name << " threw nothing";
  return {DistError::Kind::kSystem, ""};
}

}  // namespace ddprun::testing_support

// A statement throws a DistError of one kind, with words that a matcher accepts.
#define EXPECT_DIST_ERROR(statement, expected_kind, words)                                        \
  do {                                                                                            \
    const ::ddprun::DistError error_ =                                                            \
        ::ddprun::testing_support::dist_error_of([&] { statement; }, #statement);                 \
    EXPECT_EQ(static_cast<int>(error_.kind()), static_cast<int>(expected_kind)) << error_.what(); \
    EXPECT_THAT(error_.what(), words);                                                            \
  } while (false)
