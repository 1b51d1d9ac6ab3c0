// Checks for statements that throw a DistError.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/error.h"

namespace ddprun::testing_support {

// Returns the DistError that the action throws. Fails the test if it throws nothing. Exceptions
// of other types pass through.
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

// Expects that the statement throws a DistError of this kind, with a message that the matcher
// accepts.
#define EXPECT_DIST_ERROR(statement, expected_kind, words)                                        \
  do {                                                                                            \
    const ::ddprun::DistError error_ =                                                            \
        ::ddprun::testing_support::dist_error_of([&] { statement; }, #statement);                 \
    EXPECT_EQ(static_cast<int>(error_.kind()), static_cast<int>(expected_kind)) << error_.what(); \
    EXPECT_THAT(error_.what(), words);                                                            \
  } while (false)
